package access

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/hex"

	"k8s.io/apiserver/pkg/authentication/user"
)

// uidOID is the subject attribute that carries a user's UID in a client certificate.
var uidOID = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}

// subject returns the user that a certificate identifies, as upstream does: the common name, the organizations as
// groups, at most one UID, and the certificate's hash as the credential ID. It returns nil if there is no common name.
// invalid reports an empty or a second UID.
func subject(c *x509.Certificate) (u user.Info, invalid bool) {
	if c.Subject.CommonName == "" {
		return nil, false
	}
	info := &user.DefaultInfo{Name: c.Subject.CommonName}
	for _, n := range c.Subject.Names {
		if !n.Type.Equal(uidOID) {
			continue
		}
		uid, _ := n.Value.(string)
		if uid == "" || info.UID != "" {
			return nil, true
		}
		info.UID = uid
	}
	hash := sha256.Sum256(c.Raw)
	info.Extra = map[string][]string{user.CredentialIDKey: {"X509SHA256=" + hex.EncodeToString(hash[:])}}
	info.Groups = withAuthenticated(info.Name, c.Subject.Organization)
	return info, false
}

// withAuthenticated returns groups with system:authenticated appended. It returns groups unchanged for the user
// system:anonymous, and if groups contain system:authenticated or system:unauthenticated.
func withAuthenticated(name string, groups []string) []string {
	if name == user.Anonymous {
		return groups
	}
	for _, g := range groups {
		if g == user.AllAuthenticated || g == user.AllUnauthenticated {
			return groups
		}
	}
	return append(groups[:len(groups):len(groups)], user.AllAuthenticated)
}
