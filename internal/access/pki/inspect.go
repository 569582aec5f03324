package pki

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/util/cert"
)

// Certificate is what can be told of a certificate in a folder. Of one that is missing or unreadable that is its name.
type Certificate struct {
	Name      string    `json:"name"`
	Subject   string    `json:"subject,omitempty"`
	Names     []string  `json:"names,omitempty"` // and addresses
	Issuer    string    `json:"issuer,omitempty"`
	NotBefore time.Time `json:"notBefore,omitzero"`
	NotAfter  time.Time `json:"notAfter,omitzero"`
	DaysLeft  int       `json:"daysLeft"`
	// RenewedAtStart: a start of the server would replace it, and so does a server that runs.
	RenewedAtStart bool `json:"renewedAtStart"`
}

// List tells of the certificates in dir.
func List(dir string, now time.Time) (list []Certificate, err error) {
	for _, of := range authorities {
		m := &maker{files: shown{folder(dir)}, now: now}
		data, err := m.storedCA(of)
		if err != nil {
			return nil, err
		}
		if data == nil {
			continue
		}
		authority, err := cert.ParseCertsPEM(data)
		if err != nil {
			return nil, fmt.Errorf("pki: %s: %w", m.path(of.name+".crt"), err)
		}
		m.ca = authority[0]
		list = append(list, describe(of.name, data, now))
		for _, name := range of.leaves {
			if data, err = m.read(name + ".crt"); err != nil {
				return nil, err
			}
			key, err := m.stored(name + ".key")
			if err != nil {
				return nil, err
			}
			c := describe(name, data, now)
			c.RenewedAtStart = key == nil || !m.fits(data, key, nil)
			list = append(list, c)
		}
	}
	return list, nil
}

// storedCA is nil where an older server, which knew the first alone, has made the folder.
func (m *maker) storedCA(of authority) ([]byte, error) {
	data, err := m.read(of.name + ".crt")
	if data == nil && err == nil && of.name == authorities[0].name {
		err = fmt.Errorf("pki: there is no %s: the first start of a server makes it", m.path(of.name+".crt"))
	}
	return data, err
}

func describe(name string, data []byte, now time.Time) Certificate {
	certs, err := cert.ParseCertsPEM(data)
	if err != nil {
		return Certificate{Name: name}
	}
	c := certs[0]
	said := Certificate{
		Name: name, Subject: c.Subject.String(), Names: slices.Clone(c.DNSNames), Issuer: c.Issuer.String(),
		NotBefore: c.NotBefore, NotAfter: c.NotAfter, DaysLeft: int(c.NotAfter.Sub(now) / day),
	}
	for _, ip := range c.IPAddresses {
		said.Names = append(said.Names, ip.String())
	}
	return said
}

// Reissue replaces certificates in dir, and their keys, by others with the same names; no names means all but the CA.
func Reissue(dir string, names []string, now time.Time) error {
	if len(names) == 0 {
		names = leaves()
	}
	for _, name := range names {
		if !slices.Contains(leaves(), name) {
			return fmt.Errorf("there is no certificate %q that can be renewed; there are %s", name, strings.Join(leaves(), ", "))
		}
	}
	for _, of := range authorities {
		m := &maker{files: folder(dir), now: now}
		if data, err := m.storedCA(of); data == nil {
			if err != nil {
				return err
			}
			continue
		}
		if _, err := m.authority(of); err != nil {
			return err
		}
		for _, name := range of.leaves {
			if !slices.Contains(names, name) {
				continue
			}
			if err := m.reissue(name); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *maker) reissue(name string) error {
	data, err := m.read(name + ".crt")
	if err != nil {
		return err
	}
	old := describe(name, data, m.now)
	if name == servingName && len(old.Names) == 0 {
		return fmt.Errorf("pki: %s says no names to renew it for: a start of the server makes it anew", m.path(name+".crt"))
	}
	_, err = m.newLeaf(name, old.Names)
	return err
}
