package read

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Continue tokens have upstream's format: a small JSON document in base64. It contains the revision of the snapshot
// and the key to continue from. The key is relative to the collection.
const tokenVersion = "meta.k8s.io/v1"

// latestRevision is the revision of a token that continues in the newest state.
const latestRevision = -1

type token struct {
	Version  string `json:"v"`
	Revision int64  `json:"rv"`
	Start    string `json:"start"`
}

// encodeToken returns a token that continues after key.
func encodeToken(key, prefix string, revision int64) string {
	data, err := json.Marshal(token{tokenVersion, revision, strings.TrimPrefix(key, prefix) + "\x00"})
	if err != nil {
		panic(err) // impossible for a struct of strings and an integer
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

// decodeToken returns the first key to list and the revision in a token.
func decodeToken(text, prefix string) (start string, revision int64, err error) {
	const invalid = "continue key is not valid"
	bad := func(format string, args ...any) (string, int64, error) {
		return "", 0, apierrors.NewBadRequest("invalid continue token: " + fmt.Sprintf(format, args...))
	}
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return bad(invalid+": %v", err)
	}
	var t token
	if err := json.Unmarshal(data, &t); err != nil {
		return bad(invalid+": %v", err)
	}
	switch {
	case t.Version != tokenVersion:
		return bad(invalid+": server does not recognize this encoded version %v", t.Version)
	case t.Revision == 0:
		return bad(invalid + ": incorrect encoded start resourceVersion (version meta.k8s.io/v1)")
	case t.Start == "":
		return bad(invalid + ": encoded start key empty (version meta.k8s.io/v1)")
	}
	key := t.Start
	if !strings.HasPrefix(key, "/") {
		key = "/" + key
	}
	if path.Clean(key) != key {
		return bad(invalid+": %v", t.Start)
	}
	return prefix + key[1:], t.Revision, nil
}
