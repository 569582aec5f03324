package pki

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/util/cert"
)

// Certificate describes a stored certificate. If the certificate is missing or unreadable, only Name is set.
type Certificate struct {
	Name      string    `json:"name"`
	Subject   string    `json:"subject,omitempty"`
	Names     []string  `json:"names,omitempty"` // DNS names and IP addresses
	Issuer    string    `json:"issuer,omitempty"`
	NotBefore time.Time `json:"notBefore,omitzero"`
	NotAfter  time.Time `json:"notAfter,omitzero"`
	DaysLeft  int       `json:"daysLeft"`
	// RenewedAtStart reports whether the server replaces the certificate, at its next start or earlier while it runs.
	RenewedAtStart bool `json:"renewedAtStart"`
}

// List describes the certificates in dir.
func List(dir string, now time.Time) (list []Certificate, err error) {
	for _, a := range authorities {
		i := &issuer{files: uncheckedDirectory{directory(dir)}, now: now}
		data, err := i.storedCA(a)
		if err != nil {
			return nil, err
		}
		if data == nil {
			continue
		}
		authority, err := cert.ParseCertsPEM(data)
		if err != nil {
			return nil, fmt.Errorf("pki: %s: %w", i.path(a.name+".crt"), err)
		}
		i.ca = authority[0]
		list = append(list, describe(a.name, data, now))
		for _, name := range a.leaves {
			if data, err = i.read(name + ".crt"); err != nil {
				return nil, err
			}
			key, err := i.readKey(name + ".key")
			if err != nil {
				return nil, err
			}
			c := describe(name, data, now)
			c.RenewedAtStart = key == nil || !i.usable(data, key, nil)
			list = append(list, c)
		}
	}
	return list, nil
}

// storedCA returns the certificate of a CA. It returns nil if the second CA is missing, because older servers had only
// the first CA.
func (i *issuer) storedCA(a authority) ([]byte, error) {
	data, err := i.read(a.name + ".crt")
	if data == nil && err == nil && a.name == authorities[0].name {
		err = fmt.Errorf("pki: %s does not exist: start the server once to create it", i.path(a.name+".crt"))
	}
	return data, err
}

func describe(name string, data []byte, now time.Time) Certificate {
	certs, err := cert.ParseCertsPEM(data)
	if err != nil {
		return Certificate{Name: name}
	}
	c := certs[0]
	out := Certificate{
		Name: name, Subject: c.Subject.String(), Names: slices.Clone(c.DNSNames), Issuer: c.Issuer.String(),
		NotBefore: c.NotBefore, NotAfter: c.NotAfter, DaysLeft: int(c.NotAfter.Sub(now) / day),
	}
	for _, ip := range c.IPAddresses {
		out.Names = append(out.Names, ip.String())
	}
	return out
}

// Reissue replaces certificates in dir and their keys. The new certificates have the same names. An empty list of names
// means all certificates except the CAs.
func Reissue(dir string, names []string, now time.Time) error {
	if len(names) == 0 {
		names = leafNames()
	}
	for _, name := range names {
		if !slices.Contains(leafNames(), name) {
			return fmt.Errorf("cannot renew certificate %q: must be one of %s", name, strings.Join(leafNames(), ", "))
		}
	}
	for _, a := range authorities {
		i := &issuer{files: directory(dir), now: now}
		if data, err := i.storedCA(a); data == nil {
			if err != nil {
				return err
			}
			continue
		}
		if _, err := i.ensureAuthority(a); err != nil {
			return err
		}
		for _, name := range a.leaves {
			if !slices.Contains(names, name) {
				continue
			}
			if err := i.reissue(name); err != nil {
				return err
			}
		}
	}
	return nil
}

func (i *issuer) reissue(name string) error {
	data, err := i.read(name + ".crt")
	if err != nil {
		return err
	}
	old := describe(name, data, i.now)
	if name == servingName && len(old.Names) == 0 {
		return fmt.Errorf("pki: cannot renew %s: it has no host names; start the server to create it again",
			i.path(name+".crt"))
	}
	_, err = i.newLeaf(name, old.Names)
	return err
}
