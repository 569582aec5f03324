package api

import (
	"net/http"
	"strings"
)

const (
	verbGet              = "get"
	verbList             = "list"
	verbWatch            = "watch"
	verbCreate           = "create"
	verbUpdate           = "update"
	verbPatch            = "patch"
	verbDelete           = "delete"
	verbDeleteCollection = "deletecollection"
)

// path is the parsed path of a request, by the rules of kube-apiserver's RequestInfo.
type path struct {
	verb string // for a nonresource path: the method in lower case
	group, version, namespace,
	plural, name, subresource string
	resource       bool
	emptyNamespace bool // the path contains /namespaces/ without a name
	watchPrefix    bool // the resource is preceded by /watch/
	invalid        bool // the path cannot be the path of a resource
	hasSubpath     bool // the subresource is followed by more segments
}

// maxSegments is the maximum number of segments in the path of a resource: apis, group, version, watch,
// namespaces, namespace, resource, name and subresource.
const maxSegments = 9

// parse parses an unescaped URL path. It never fails: an invalid path results in a name or resource that does not
// exist.
func (p *path) parse(method, url string) {
	if p.verb = verbGet; method != http.MethodGet {
		p.verb = strings.ToLower(method)
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
			p.hasSubpath = true
			break
		}
		if i < 0 {
			parts = append(parts, rest)
			break
		}
		parts, rest = append(parts, rest[:i]), rest[i+1:]
	}
	if parts = parts[1:]; !core && len(parts) > 2 {
		p.group, parts = parts[0], parts[1:]
		// An empty group is invalid, because it would be an alias of the core group.
		p.invalid = p.invalid || p.group == ""
	} else if !core {
		return
	}
	if len(parts) < 2 {
		return
	}
	p.resource, p.version = true, parts[0]
	p.parseResource(method, parts[1:])
}

// parseResource parses the segments after the version. parts must not be empty.
func (p *path) parseResource(method string, parts []string) {
	p.verb = verbOf(method)
	if parts[0] == verbWatch && len(parts) > 1 {
		p.watchPrefix, p.verb = true, verbWatch
		parts = parts[1:]
	}
	if parts[0] == "namespaces" && len(parts) > 1 {
		p.namespace = parts[1]
		if len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
			parts, p.emptyNamespace = parts[2:], p.namespace == ""
			p.invalid = p.invalid || parts[0] == "namespaces" && p.group == "" // a namespace cannot be in a namespace
		}
	}
	p.plural = parts[0]
	if len(parts) > 1 {
		p.name = parts[1]
	}
	if len(parts) > 2 {
		p.subresource = parts[2]
	}
	p.hasSubpath = p.hasSubpath || len(parts) > 3
	switch {
	case p.name == "" && p.verb == verbGet:
		p.verb = verbList
	case p.name == "" && p.verb == verbDelete:
		p.verb = verbDeleteCollection
	}
}

// verbOf returns the verb of a method on one object, or "" for an unknown method.
func verbOf(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead:
		return verbGet
	case http.MethodPost:
		return verbCreate
	case http.MethodPut:
		return verbUpdate
	case http.MethodPatch:
		return verbPatch
	case http.MethodDelete:
		return verbDelete
	}
	return ""
}

// scope returns the value of the label scope in the metrics.
func (p *path) scope() string {
	switch {
	case p.name != "" || p.verb == verbCreate:
		return "resource"
	case p.namespace != "":
		return "namespace"
	case p.resource:
		return "cluster"
	}
	return ""
}
