// Package crd compiles the schemas of CustomResourceDefinitions. Its subpackages read schemas, prune, default and
// validate objects, and evaluate rules.
package crd

import (
	"sync"

	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/trellis-k8s/trellis/internal/crd/cel"
	"github.com/trellis-k8s/trellis/internal/crd/defaulting"
	"github.com/trellis-k8s/trellis/internal/crd/schema"
)

// Compiled is a compiled schema. It is immutable and safe for concurrent use. Its parts are computed on first use.
type Compiled struct {
	defaulting.Normalizer
	rules *cel.Rules

	fingerprint func() uint64
	parseable   func() (typed.ParseableType, error)
}

func newCompiled(s *schema.Schema) *Compiled {
	return &Compiled{
		Normalizer:  defaulting.Normalizer{Schema: s},
		rules:       cel.NewRules(s),
		fingerprint: sync.OnceValue(s.Fingerprint),
		parseable: sync.OnceValues(func() (typed.ParseableType, error) {
			return newParseable(s.Root, s.Preserve)
		}),
	}
}

// Parseable returns the schema for structured-merge-diff, including metadata. The first call computes it.
func (c *Compiled) Parseable() (typed.ParseableType, error) { return c.parseable() }

// Fingerprint returns the fingerprint of the schema. The first call computes it.
func (c *Compiled) Fingerprint() uint64 { return c.fingerprint() }
