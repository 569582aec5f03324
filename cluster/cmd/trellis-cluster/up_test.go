package main

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
)

// The parts of a second cluster on a machine serve health and metrics at free ports, and not at those of the first.
func TestServingPortsOfASecondCluster(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root serves health and metrics")
	}
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	usual := fmt.Sprintf("--secure-port=%d", port)
	if got := servingPort(port); len(got) != 1 || !strings.HasPrefix(got[0], "--secure-port=") || got[0] == "--secure-port=0" || got[0] == usual {
		t.Errorf("%v where port %d is taken", got, port)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got := servingPort(port); len(got) != 1 || got[0] != usual {
		t.Errorf("%v where port %d is free", got, port)
	}
}
