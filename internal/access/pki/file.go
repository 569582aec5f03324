package pki

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
)

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

// Kubeconfig is the administrator's kubeconfig for the server at url.
func (b *Bundle) Kubeconfig(url string) []byte {
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: trellis
  cluster:
    server: %s
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
`, url, b64(b.CAPEM), b64(b.AdminCert), b64(b.AdminKey))
}
