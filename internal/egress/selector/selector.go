// Package selector turns the file of --egress-selector-config-file into ways out of the server: directly, or through the tunnel of
// a Konnectivity server
// (https://kubernetes.io/docs/tasks/extend-kubernetes/setup-konnectivity/, KEP-1281).
package selector

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/server/egressselector"
)

// Dial opens a connection to a host and port.
type Dial = utilnet.DialFunc

// Selector has the way to each destination that a file selects one for. The zero value is that of no file.
type Selector struct {
	ways  map[egressselector.EgressType]Dial // nil: directly
	run   []func(context.Context)
	close []func()
}

// To is the way to a destination; nil: directly.
func (s *Selector) To(destination egressselector.EgressType) Dial { return s.ways[destination] }

// Lookup is the same for upstream's clients, as an egressselector.Lookup: nil is a destination that the file says nothing of.
func (s *Selector) Lookup(of egressselector.NetworkContext) (Dial, error) {
	way, said := s.ways[of.EgressSelectionName]
	if said && way == nil {
		return (&net.Dialer{KeepAlive: keepAlive}).DialContext, nil
	}
	return way, nil
}

// Open reads a file; "" is none. Its mistakes are told all at once, by their fields. Nothing is connected to yet.
func Open(file string) (*Selector, error) {
	s := &Selector{}
	if file == "" {
		return s, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	said, err := read(text)
	if err == nil {
		err = s.open(said.EgressSelections).ToAggregate()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return s, nil
}

// open makes the way of each selection.
func (s *Selector) open(selections []apiserver.EgressSelection) (errs field.ErrorList) {
	s.ways = map[egressselector.EgressType]Dial{}
	destinations := map[string]egressselector.EgressType{}
	for _, d := range []egressselector.EgressType{egressselector.Cluster, egressselector.ControlPlane, egressselector.Etcd} {
		destinations[d.String()] = d
	}
	for i, one := range selections {
		at, name := field.NewPath("egressSelections").Index(i), strings.ToLower(one.Name) // as upstream
		to, known := destinations[name]
		if !known {
			errs = append(errs, field.NotSupported(at.Child("name"), one.Name, slices.Sorted(maps.Keys(destinations))))
			continue
		}
		if _, twice := s.ways[to]; twice { // master is controlplane by now
			errs = append(errs, field.Duplicate(at.Child("name"), name))
		}
		way, wrong := s.way(name, one.Connection, at.Child("connection"))
		s.ways[to], errs = way, append(errs, wrong...)
	}
	return errs
}

// Run reads certificates again when their files change, until ctx is done.
func (s *Selector) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, run := range s.run {
		running.Go(func() { run(ctx) })
	}
	running.Wait()
}

// Close ends the connections to tunnel servers that are shared, and what goes through them.
func (s *Selector) Close() {
	for _, end := range s.close {
		end()
	}
}
