package endpoints

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/storage"
)

const (
	addressTTL     = 15 * time.Second // as in kube-apiserver
	addressTimeout = 5 * time.Second
)

// addresses stores the addresses of the running servers with the same keys and values as kube-apiserver. It implements
// reconcilers.Leases.
type addresses struct {
	store storage.Store // nil if there are no other servers
	own   string        // used only if there are no other servers
}

// ListLeases implements reconcilers.Leases.
func (a *addresses) ListLeases() (ips []string, err error) {
	if a.store == nil {
		if a.own != "" {
			ips = []string{a.own}
		}
		return ips, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), addressTimeout)
	defer cancel()
	head, err := a.store.Fresh(ctx)
	if err != nil {
		return nil, err
	}
	for rec := range head.Walk(kinds.ServerAddresses, "") {
		ips = append(ips, strings.TrimPrefix(rec.Key, kinds.ServerAddresses))
	}
	return ips, nil
}

// UpdateLease implements reconcilers.Leases.
func (a *addresses) UpdateLease(ip string) error {
	if a.store == nil {
		a.own = ip
		return nil
	}
	const object = `{"kind":"Endpoints","apiVersion":"v1","metadata":{},"subsets":[{"addresses":[{"ip":"%s"}]}]}`
	return a.write(storage.Write{
		Key: kinds.ServerAddresses + ip, Value: fmt.Appendf(nil, object, ip), TTL: addressTTL,
	})
}

// RemoveLease implements reconcilers.Leases.
func (a *addresses) RemoveLease(ip string) error {
	return a.write(storage.Write{Key: kinds.ServerAddresses + ip})
}

// write applies w to any state of its key.
func (a *addresses) write(w storage.Write) error {
	ctx, cancel := context.WithTimeout(context.Background(), addressTimeout)
	defer cancel()
	for current := a.store.Head().Get(w.Key); ; {
		w.Expected = 0
		if current != nil {
			w.Expected = current.Modified
		} else if w.Value == nil {
			return nil
		}
		_, err := a.store.Commit(ctx, []storage.Write{w})
		var conflict *storage.ConflictError
		if !errors.As(err, &conflict) {
			return err
		}
		current = conflict.Current
	}
}

// Destroy implements reconcilers.Leases.
func (a *addresses) Destroy() {}
