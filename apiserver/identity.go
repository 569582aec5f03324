package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/trellis-k8s/trellis/internal/access/pki"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// identityKey is the key in etcd of the identity of the servers that share it.
const identityKey = "/registry/trellis/identity"

// identity holds the fingerprints of the CAs and service account keys of a server, by the name of their file. The first
// fingerprint in each list is of the key that signs. The server trusts all of them.
type identity map[string][]string

// checkIdentity compares this server's identity with that of the servers which use the same etcd, and stores it there.
// All servers must trust each other's signatures. A server without a data directory has keys of its own and is not
// compared.
func (s *Server) checkIdentity(ctx context.Context) error {
	if s.etcd == nil || s.config.DataDir == "" {
		return nil
	}
	own, err := s.identity()
	if err != nil {
		return err
	}
	data, err := json.Marshal(own)
	if err != nil {
		return err
	}
	for {
		write := storage.Write{Key: identityKey, Value: data}
		if stored := s.store.Head().Get(identityKey); stored != nil {
			write.Expected = stored.Modified
			if string(stored.Value) == string(data) {
				return nil
			}
			if err := s.compareIdentity(own, stored.Value); err != nil {
				return err
			}
		}
		_, err := s.store.Commit(ctx, []storage.Write{write})
		conflict := (*storage.ConflictError)(nil)
		if !errors.As(err, &conflict) {
			return err
		}
		if _, err := s.store.Wait(ctx, conflict.Revision); err != nil {
			return err
		}
	}
}

func (s *Server) identity() (own identity, err error) {
	if own, err = s.keys.Load().Fingerprints(); err != nil {
		return nil, err
	}
	own[pki.AccountKeyName], err = s.authn.AccountKeys()
	return own, err
}

// compareIdentity returns an error if this server does not trust the signatures of the servers with the stored
// identity, or the other way round.
func (s *Server) compareIdentity(own identity, stored []byte) error {
	others := identity{}
	if err := json.Unmarshal(stored, &others); err != nil {
		return fmt.Errorf("%s in etcd is invalid: %w", identityKey, err)
	}
	for name, keys := range own {
		theirs := others[name]
		if len(theirs) == 0 || slices.Contains(theirs, keys[0]) && slices.Contains(keys, theirs[0]) {
			continue
		}
		path := s.path("pki/" + name)
		if file := s.config.Authentication.Accounts.SigningKeyFile; name == pki.AccountKeyName && file != "" {
			path = file
		}
		return fmt.Errorf("%s is not the file of the other servers that use this etcd: import their keys with "+
			"trellis certs import. If there is no other server, delete %s in etcd", path, identityKey)
	}
	return nil
}
