package etcd

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/connectivity"
)

// responseDelay is the time after which a request without a response makes the store check the members of etcd. It is
// also the time that a member has to respond to this check.
const responseDelay = time.Second

// expectResponse starts a timer that checks the members of etcd. The caller stops it when its request has a response.
func (s *Store) expectResponse() *time.Timer {
	return time.AfterFunc(responseDelay, s.closeUnresponsive)
}

// closeUnresponsive closes the connections to members that do not respond at all, so that requests and the watch
// continue on other members. The kernel of a paused member accepts all data, and gRPC would keep the connection for 13
// seconds. A member that is only slow responds to a new connection, so its requests continue.
func (s *Store) closeUnresponsive() {
	if !s.checking.TryLock() {
		return
	}
	defer s.checking.Unlock()
	var checks sync.WaitGroup
	defer checks.Wait()
	s.conns.Range(func(address, conn any) bool {
		checks.Go(func() {
			if !s.responds(address.(string)) && s.conns.CompareAndDelete(address, conn) {
				s.options.Logger.Warn("a member of etcd does not respond: its connection is closed",
					"member", address)
				_ = conn.(net.Conn).Close()
			}
		})
		return true
	})
}

// responds reports whether a member responds to a new connection with the settings of HTTP/2 or an error.
func (s *Store) responds(address string) bool {
	ctx, cancel := context.WithTimeout(s.lifetime, responseDelay)
	defer cancel()
	client, err := s.newClient([]string{s.options.scheme() + address}, s.dial)
	if err != nil {
		return true
	}
	defer func() { _ = client.Close() }()
	conn := client.ActiveConnection()
	conn.Connect()
	for {
		state := conn.GetState()
		if state == connectivity.Ready || state == connectivity.TransientFailure {
			return true
		}
		if !conn.WaitForStateChange(ctx, state) {
			return s.lifetime.Err() != nil
		}
	}
}
