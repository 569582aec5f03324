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

// files stores the files of a bundle.
type files interface {
	// read returns nil if the file does not exist.
	read(name string) ([]byte, error)
	write(name string, data []byte) error
	path(name string) string
}

// directory stores files in a directory. It reads only files that no other user can write, and only keys that no other
// user can read.
type directory string

func (f directory) path(name string) string { return filepath.Join(string(f), name) }

func (f directory) read(name string) ([]byte, error) {
	read := ownership.ReadFile
	if strings.HasSuffix(name, ".key") {
		read = ownership.ReadKey
	}
	return f.readWith(read, name)
}

func (f directory) readWith(read func(path string) ([]byte, error), name string) ([]byte, error) {
	data, err := read(f.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	return data, nil
}

func (f directory) write(name string, data []byte) error {
	if err := WriteFile(f.path(name), data); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	return nil
}

// uncheckedDirectory is a directory that also reads files writable by other users. List uses it, so that root can list
// the certificates of another user.
type uncheckedDirectory struct{ directory }

func (f uncheckedDirectory) read(name string) ([]byte, error) { return f.readWith(os.ReadFile, name) }

// memoryFiles stores files in memory, by name.
type memoryFiles map[string][]byte

func (m memoryFiles) path(name string) string              { return name }
func (m memoryFiles) read(name string) ([]byte, error)     { return m[name], nil }
func (m memoryFiles) write(name string, data []byte) error { m[name] = data; return nil }

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// WriteFile writes data to path with mode 0600. The write is atomic: a reader sees the previous or the new content,
// even after a power failure.
func WriteFile(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // created with mode 0600
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

// Kubeconfig returns the administrator's kubeconfig for the server at url. Clients send tlsServerName as the server
// name in the TLS handshake; "" means the host in url.
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
