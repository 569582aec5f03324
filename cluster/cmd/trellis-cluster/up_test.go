package main

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
)

// TestServingPortsOfASecondCluster checks that the parts of a second cluster on a machine serve health and metrics on
// free ports.
func TestServingPortsOfASecondCluster(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root serves health and metrics")
	}
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	standard := fmt.Sprintf("--secure-port=%d", port)
	if got := servingPort(port); len(got) != 1 || !strings.HasPrefix(got[0], "--secure-port=") ||
		got[0] == "--secure-port=0" || got[0] == standard {
		t.Errorf("got %v while port %d is in use", got, port)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got := servingPort(port); len(got) != 1 || got[0] != standard {
		t.Errorf("got %v while port %d is free", got, port)
	}
}
