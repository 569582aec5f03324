package process

import (
	"net"
	"runtime"

	"golang.org/x/sys/unix"
)

// Dial connects to an address in the network namespace of a process.
func (id ID) Dial(network, address string) (net.Conn, error) {
	type answer struct {
		conn net.Conn
		err  error
	}
	done := make(chan answer)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its namespace
		if err := id.join(unix.CLONE_NEWNET); err != nil {
			done <- answer{nil, err}
			return
		}
		conn, err := net.Dial(network, address) // a literal address: nothing leaves this thread
		done <- answer{conn, err}
	}()
	a := <-done
	return a.conn, a.err
}
