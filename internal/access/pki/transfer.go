package pki

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"k8s.io/client-go/util/cert"
)

// AccountKeyName is the file name of the key of service account tokens.
const AccountKeyName = "sa.key"

// sharedFiles returns the names of the files that all servers of a store need, keys first. A server issues all other
// certificates itself.
func sharedFiles() []string {
	names := []string{AccountKeyName}
	for _, a := range authorities {
		names = append(names, a.name+".key", a.name+".crt")
	}
	return names
}

// maxArchive is the maximum size of an archive in bytes.
const maxArchive = 1 << 20

// Export writes a tar archive of the CAs, their keys and the service account key in dir.
func Export(dir string, w io.Writer, now time.Time) error {
	t := tar.NewWriter(w)
	for _, name := range sharedFiles() {
		data, err := directory(dir).read(name)
		if err != nil {
			return err
		}
		if data == nil {
			return fmt.Errorf("pki: %s does not exist: start the server once to create it", directory(dir).path(name))
		}
		err = t.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(data)), ModTime: now})
		if err != nil {
			return fmt.Errorf("write the archive: %w", err)
		}
		if _, err := t.Write(data); err != nil {
			return fmt.Errorf("write the archive: %w", err)
		}
	}
	return t.Close()
}

// Import writes the files of an archive of Export to dir, which it creates. It returns an error and writes nothing if
// the archive is invalid or dir contains a different file with one of the names.
func Import(dir string, r io.Reader, now time.Time) error {
	found, err := readArchive(io.LimitReader(r, maxArchive))
	if err != nil {
		return fmt.Errorf("read the archive: %w", err)
	}
	if _, err := load(maps.Clone(found), nil, now); err != nil {
		return fmt.Errorf("the archive is invalid: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	to := directory(dir)
	for name, data := range found {
		stored, err := to.read(name)
		if err != nil {
			return err
		}
		if stored != nil && !bytes.Equal(stored, data) {
			return fmt.Errorf("pki: %s exists and differs from the archive: remove %s if no client needs its keys",
				to.path(name), dir)
		}
	}
	for _, name := range sharedFiles() {
		if err := to.write(name, found[name]); err != nil {
			return err
		}
	}
	return nil
}

// readArchive returns the files of an archive by name. It returns an error unless they are the shared files.
func readArchive(r io.Reader) (memoryFiles, error) {
	names, found := sharedFiles(), memoryFiles{}
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag != tar.TypeReg || !slices.Contains(names, h.Name) {
			return nil, fmt.Errorf("unexpected file %q", h.Name)
		}
		if found[h.Name], err = io.ReadAll(t); err != nil {
			return nil, err
		}
	}
	for _, name := range names {
		if len(found[name]) == 0 {
			return nil, fmt.Errorf("the file %s is missing", name)
		}
	}
	return found, nil
}

// Fingerprints returns the fingerprints of the certificates of each CA, by the name of the CA's file. The first one is
// of the certificate that signs. Clients trust all of them.
func (b *Bundle) Fingerprints() (map[string][]string, error) {
	all := map[string][]string{}
	for i, data := range [][]byte{b.CAPEM, b.ProxyCAPEM} {
		name := authorities[i].name + ".crt"
		certs, err := cert.ParseCertsPEM(data)
		if err != nil {
			return nil, fmt.Errorf("pki: %s: %w", b.files.path(name), err)
		}
		for _, c := range certs {
			all[name] = append(all[name], Fingerprint(c.Raw))
		}
	}
	return all, nil
}

// Fingerprint returns the SHA-256 fingerprint of a certificate or public key in DER.
func Fingerprint(der []byte) string {
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}
