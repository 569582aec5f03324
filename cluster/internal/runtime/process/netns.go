package process

import (
	"net"
	"runtime"

	"golang.org/x/sys/unix"
)

// Dial connects to an address in the network namespace of the process. The address must not contain a host name.
func (id ID) Dial(network, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		if err := id.join(unix.CLONE_NEWNET); err != nil {
			done <- result{nil, err}
			return
		}
		conn, err := net.Dial(network, address) // needs no name resolution, which would run in other threads
		done <- result{conn, err}
	}()
	a := <-done
	return a.conn, a.err
}
