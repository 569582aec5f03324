package api

import (
	"net/http"
	"strings"
)

const (
	verbGet    = "get"
	verbList   = "list"
	verbWatch  = "watch"
	verbCreate = "create"
	verbUpdate = "update"
	verbPatch  = "patch"
	verbDelete = "delete"
	verbClear  = "deletecollection"
)

// path is what a request addresses, by the rules of kube-apiserver's RequestInfo.
type path struct {
	verb string // for what is no resource: the lower-case method
	group, version, namespace,
	plural, name, subresource string
	resource    bool
	unplaced    bool // the name of a namespace is left out
	watchPrefix bool // /watch/ stood before the resource
	deep        bool // there is more than a path of a resource can have
	further     bool // there is more behind the subresource
}

// maxSegments is how many parts a path of a resource can have: apis, group, version, watch,
// namespaces, a namespace, resource, name, subresource.
const maxSegments = 9

// parse reads an unescaped URL path. It never fails: what looks odd ends up as a name
// or plural that is not there.
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
			p.further = true
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
		// An empty group would be the core group by another name.
		p.deep = p.deep || p.group == ""
	} else if !core {
		return
	}
	if len(parts) < 2 {
		return
	}
	p.resource, p.version = true, parts[0]
	p.below(method, parts[1:])
}

// below reads what follows the version; there is at least one part.
func (p *path) below(method string, parts []string) {
	p.verb = verbOf(method)
	if parts[0] == verbWatch && len(parts) > 1 {
		p.watchPrefix, p.verb = true, verbWatch
		parts = parts[1:]
	}
	if parts[0] == "namespaces" && len(parts) > 1 {
		p.namespace = parts[1]
		if len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
			parts, p.unplaced = parts[2:], p.namespace == ""
			p.deep = p.deep || parts[0] == "namespaces" && p.group == "" // none lies within another
		}
	}
	p.plural = parts[0]
	if len(parts) > 1 {
		p.name = parts[1]
	}
	if len(parts) > 2 {
		p.subresource = parts[2]
	}
	p.further = p.further || len(parts) > 3
	switch {
	case p.name == "" && p.verb == verbGet:
		p.verb = verbList
	case p.name == "" && p.verb == verbDelete:
		p.verb = verbClear
	}
}

// verbOf is what a method does to an object; "" for one that does nothing.
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

// scope is how metrics call the reach of a request.
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
