// Package selector reads the file of --egress-selector-config-file and returns dialers for it. A dialer opens
// connections directly or through the tunnel of a Konnectivity server
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

// Selector holds the dialers that a file configures for destinations. The zero value represents no file.
type Selector struct {
	dialers map[egressselector.EgressType]Dial // a nil value means a direct connection
	run     []func(context.Context)
	close   []func()
}

// Dialer returns the dialer for a destination. nil means a direct connection.
func (s *Selector) Dialer(destination egressselector.EgressType) Dial { return s.dialers[destination] }

// Lookup returns a dialer as Dialer does, in the form that upstream's clients need (egressselector.Lookup). It
// returns nil if the file does not configure the destination.
func (s *Selector) Lookup(of egressselector.NetworkContext) (Dial, error) {
	dialer, configured := s.dialers[of.EgressSelectionName]
	if configured && dialer == nil {
		return (&net.Dialer{KeepAlive: keepAlive}).DialContext, nil
	}
	return dialer, nil
}

// Open reads a file. "" means no file. The error lists all mistakes with their fields. Open does not connect to tunnel
// servers.
func Open(file string) (*Selector, error) {
	s := &Selector{}
	if file == "" {
		return s, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	config, err := read(text)
	if err == nil {
		err = s.open(config.EgressSelections).ToAggregate()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return s, nil
}

// open creates the dialer of each selection.
func (s *Selector) open(selections []apiserver.EgressSelection) (errs field.ErrorList) {
	s.dialers = map[egressselector.EgressType]Dial{}
	destinations := map[string]egressselector.EgressType{}
	for _, d := range []egressselector.EgressType{egressselector.Cluster, egressselector.ControlPlane,
		egressselector.Etcd} {
		destinations[d.String()] = d
	}
	for i, selection := range selections {
		path, name := field.NewPath("egressSelections").Index(i), strings.ToLower(selection.Name) // like upstream
		to, known := destinations[name]
		if !known {
			errs = append(errs, field.NotSupported(path.Child("name"), selection.Name,
				slices.Sorted(maps.Keys(destinations))))
			continue
		}
		if _, twice := s.dialers[to]; twice { // decoding has changed "master" to "controlplane"
			errs = append(errs, field.Duplicate(path.Child("name"), name))
		}
		dialer, problems := s.newDialer(name, selection.Connection, path.Child("connection"))
		s.dialers[to], errs = dialer, append(errs, problems...)
	}
	return errs
}

// Run reloads certificates when their files change, until ctx is done.
func (s *Selector) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, run := range s.run {
		running.Go(func() { run(ctx) })
	}
	running.Wait()
}

// Close closes the shared connections to tunnel servers, which ends all connections through them.
func (s *Selector) Close() {
	for _, closeConn := range s.close {
		closeConn()
	}
}
