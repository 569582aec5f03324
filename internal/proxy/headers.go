package proxy

import (
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Headers lists the names of the headers in which an authenticating proxy sends a user's identity
// (https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer). Set uses the first name of each
// list.
type Headers struct{ Username, UID, Group, ExtraPrefix []string }

// Default returns a copy of h in which each empty list is replaced by the usual name.
func (h Headers) Default() Headers {
	fill := func(names []string, usual string) []string {
		if len(names) == 0 {
			return []string{usual}
		}
		return names
	}
	return Headers{fill(h.Username, "X-Remote-User"), fill(h.UID, "X-Remote-Uid"), fill(h.Group, "X-Remote-Group"),
		fill(h.ExtraPrefix, "X-Remote-Extra-")}
}

// defaults holds the usual names. Another API server may trust them even if this server's flags specify other names.
var defaults = Headers{}.Default()

// Clear removes the headers with these names or the usual names, and the client's credentials. They must not reach
// another server. Clear treats "_" in a name like "-", as some programs do.
func (h Headers) Clear(header http.Header) {
	for name := range header {
		canonical := strings.ReplaceAll(name, "_", "-")
		is := func(listed string) bool { return strings.EqualFold(listed, canonical) }
		hasPrefix := func(prefix string) bool {
			return len(canonical) >= len(prefix) && strings.EqualFold(prefix, canonical[:len(prefix)])
		}
		isIdentity := func(h Headers) bool {
			return slices.ContainsFunc(h.Username, is) || slices.ContainsFunc(h.UID, is) ||
				slices.ContainsFunc(h.Group, is) || slices.ContainsFunc(h.ExtraPrefix, hasPrefix)
		}
		if is("Authorization") || isIdentity(h) || isIdentity(defaults) {
			delete(header, name)
		}
	}
}

// Set sets the headers to the identity of the user.
func (h Headers) Set(header http.Header, u user.Info) {
	header[textproto.CanonicalMIMEHeaderKey(h.Username[0])] = []string{u.GetName()}
	if uid := u.GetUID(); uid != "" {
		header[textproto.CanonicalMIMEHeaderKey(h.UID[0])] = []string{uid}
	}
	if groups := u.GetGroups(); len(groups) > 0 {
		header[textproto.CanonicalMIMEHeaderKey(h.Group[0])] = groups
	}
	for key, values := range u.GetExtra() {
		header[textproto.CanonicalMIMEHeaderKey(h.ExtraPrefix[0]+escape(key))] = values
	}
}

// escape returns key in a form that is valid in the name of a header. The package headerrequest of k8s.io/apiserver,
// which receives the header, unescapes the key.
func escape(key string) string {
	const digits = "0123456789ABCDEF"
	var out strings.Builder
	out.Grow(3 * len(key))
	for i := range len(key) {
		if b := key[i]; b != '%' && httpguts.IsTokenRune(rune(b)) {
			out.WriteByte(b)
		} else {
			out.Write([]byte{'%', digits[b>>4], digits[b&15]})
		}
	}
	return out.String()
}
