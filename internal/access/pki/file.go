package pki

import (
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/trellis-k8s/trellis/internal/ownership"
)

// files are where a bundle is kept.
type files interface {
	// read returns nil where the file does not exist.
	read(name string) ([]byte, error)
	write(name string, data []byte) error
	path(name string) string
}

// folder reads only files that no other user can have written, and keys that no other user can read.
type folder string

func (f folder) path(name string) string { return filepath.Join(string(f), name) }

func (f folder) read(name string) ([]byte, error) {
	read := ownership.ReadFile
	if strings.HasSuffix(name, ".key") {
		read = ownership.ReadKey
	}
	return f.readBy(read, name)
}

func (f folder) readBy(read func(path string) ([]byte, error), name string) ([]byte, error) {
	data, err := read(f.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	return data, nil
}

func (f folder) write(name string, data []byte) error {
	if err := WriteFile(f.path(name), data); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	return nil
}

// shown is a folder whose certificates are listed. They need not be trusted: root lists those of another user.
type shown struct{ folder }

func (f shown) read(name string) ([]byte, error) { return f.readBy(os.ReadFile, name) }

// inMemory has them by their names.
type inMemory map[string][]byte

func (m inMemory) path(name string) string              { return name }
func (m inMemory) read(name string) ([]byte, error)     { return m[name], nil }
func (m inMemory) write(name string, data []byte) error { m[name] = data; return nil }

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// WriteFile puts data at path, private, whole or not at all: a reader sees the old file or
// the new one, also after a power failure.
func WriteFile(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // made with 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return err
}

// Kubeconfig is the administrator's kubeconfig for the server at url. Where tlsServerName is not "", the server is asked for
// its certificate by that name.
func (b *Bundle) Kubeconfig(url, tlsServerName string) []byte {
	b64 := base64.StdEncoding.EncodeToString
	if tlsServerName != "" {
		tlsServerName = "\n    tls-server-name: " + tlsServerName
	}
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: trellis
  cluster:
    server: %s%s
    certificate-authority-data: %s
contexts:
- name: trellis
  context:
    cluster: trellis
    user: kubernetes-admin
current-context: trellis
users:
- name: kubernetes-admin
  user:
    client-certificate-data: %s
    client-key-data: %s
`, url, tlsServerName, b64(b.CAPEM), b64(b.AdminCert), b64(b.AdminKey))
}
