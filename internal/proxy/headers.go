package proxy

import (
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Headers are the names of the headers that say who a user is, the first of each list; an authenticating proxy's
// (https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer).
type Headers struct{ Username, UID, Group, ExtraPrefix []string }

// Default has, in place of a list that is empty, what everybody has there.
func (h Headers) Default() Headers {
	fill := func(names []string, with string) []string {
		if len(names) == 0 {
			return []string{with}
		}
		return names
	}
	return Headers{fill(h.Username, "X-Remote-User"), fill(h.UID, "X-Remote-Uid"), fill(h.Group, "X-Remote-Group"), fill(h.ExtraPrefix, "X-Remote-Extra-")}
}

// usual are the names that an API server may go by whatever this one's flags say.
var usual = Headers{}.Default()

// Clear removes what a client has said of these, and its credentials, which are none of the other server's business. Some
// programs take "_" for "-".
func (h Headers) Clear(header http.Header) {
	for name := range header {
		plain := strings.ReplaceAll(name, "_", "-")
		is := func(listed string) bool { return strings.EqualFold(listed, plain) }
		begins := func(prefix string) bool {
			return len(plain) >= len(prefix) && strings.EqualFold(prefix, plain[:len(prefix)])
		}
		says := func(h Headers) bool {
			return slices.ContainsFunc(h.Username, is) || slices.ContainsFunc(h.UID, is) || slices.ContainsFunc(h.Group, is) || slices.ContainsFunc(h.ExtraPrefix, begins)
		}
		if is("Authorization") || says(h) || says(usual) {
			delete(header, name)
		}
	}
}

// Set says who the user is.
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

// escape makes a key one that a header can have. Who reads it unescapes it (k8s.io/apiserver's headerrequest).
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
