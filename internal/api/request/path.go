package request

import (
	"net/http"
	"strings"
)

const (
	VerbGet              = "get"
	VerbList             = "list"
	VerbWatch            = "watch"
	VerbCreate           = "create"
	VerbUpdate           = "update"
	VerbPatch            = "patch"
	VerbDelete           = "delete"
	VerbDeleteCollection = "deletecollection"
)

// Path is the parsed path of a request, by the rules of kube-apiserver's RequestInfo.
type Path struct {
	Verb string // for a nonresource path: the method in lower case
	Group, Version, Namespace,
	Plural, Name, Subresource string
	Resource       bool
	EmptyNamespace bool // the path contains /namespaces/ without a name
	WatchPrefix    bool // the resource is preceded by /watch/
	Invalid        bool // the path cannot be the path of a resource
	HasSubpath     bool // the subresource is followed by more segments
}

// maxSegments is the maximum number of segments in the path of a resource: apis, group, version, watch,
// namespaces, namespace, resource, name and subresource.
const maxSegments = 9

// Parse parses an unescaped URL path. It never fails: an invalid path results in a name or resource that does not
// exist.
func (p *Path) Parse(method, url string) {
	if p.Verb = VerbGet; method != http.MethodGet {
		p.Verb = strings.ToLower(method)
	}
	for len(url) > 1 && url[len(url)-1] == '/' {
		url = url[:len(url)-1]
	}
	var segments [maxSegments]string
	parts := segments[:0]
	core := strings.HasPrefix(url, "/api/")
	if !core && !strings.HasPrefix(url, "/apis/") {
		return
	}
	for rest := url[1:]; ; {
		i := strings.IndexByte(rest, '/')
		if len(parts) == maxSegments {
			p.HasSubpath = true
			break
		}
		if i < 0 {
			parts = append(parts, rest)
			break
		}
		parts, rest = append(parts, rest[:i]), rest[i+1:]
	}
	if parts = parts[1:]; !core && len(parts) > 2 {
		p.Group, parts = parts[0], parts[1:]
		// An empty group is invalid, because it would be an alias of the core group.
		p.Invalid = p.Invalid || p.Group == ""
	} else if !core {
		return
	}
	if len(parts) < 2 {
		return
	}
	p.Resource, p.Version = true, parts[0]
	p.parseResource(method, parts[1:])
}

// parseResource parses the segments after the version. parts must not be empty.
func (p *Path) parseResource(method string, parts []string) {
	switch method {
	case http.MethodGet, http.MethodHead:
		p.Verb = VerbGet
	case http.MethodPost:
		p.Verb = VerbCreate
	case http.MethodPut:
		p.Verb = VerbUpdate
	case http.MethodPatch:
		p.Verb = VerbPatch
	case http.MethodDelete:
		p.Verb = VerbDelete
	default:
		p.Verb = ""
	}
	if parts[0] == VerbWatch && len(parts) > 1 {
		p.WatchPrefix, p.Verb = true, VerbWatch
		parts = parts[1:]
	}
	if parts[0] == "namespaces" && len(parts) > 1 {
		p.Namespace = parts[1]
		if len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
			parts, p.EmptyNamespace = parts[2:], p.Namespace == ""
			p.Invalid = p.Invalid || parts[0] == "namespaces" && p.Group == "" // a namespace cannot be in a namespace
		}
	}
	p.Plural = parts[0]
	if len(parts) > 1 {
		p.Name = parts[1]
	}
	if len(parts) > 2 {
		p.Subresource = parts[2]
	}
	p.HasSubpath = p.HasSubpath || len(parts) > 3
	switch {
	case p.Name == "" && p.Verb == VerbGet:
		p.Verb = VerbList
	case p.Name == "" && p.Verb == VerbDelete:
		p.Verb = VerbDeleteCollection
	}
}
