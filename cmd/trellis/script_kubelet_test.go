package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	mathbig "math/big"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/trellis-k8s/trellis/internal/fixture/kubelet"
	"github.com/trellis-k8s/trellis/internal/fixture/tunnel"
	"github.com/trellis-k8s/trellis/internal/konnectivity/server"
)

// runKubelet runs a fake kubelet until the end of the script: kubelet FOLDER. It runs the commands for its containers
// on this machine. FOLDER contains the CA that signs the certificates of the kubelet and of its clients. The variable
// KUBELET_PORT contains the port of the kubelet.
func runKubelet(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: kubelet folder")
	}
	ca, err := tls.LoadX509KeyPair(filepath.Join(ts.MkAbs(args[0]), "ca.crt"),
		filepath.Join(ts.MkAbs(args[0]), "ca.key"))
	ts.Check(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ts.Check(err)
	leaf := &x509.Certificate{
		// The second address is reachable only through a tunnel.
		SerialNumber: mathbig.NewInt(2), Subject: pkix.Name{CommonName: "system:node:n"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(203, 0, 113, 1)},
		NotBefore:   time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca.Leaf, &key.PublicKey, ca.PrivateKey)
	ts.Check(err)
	clients := x509.NewCertPool()
	clients.AddCert(ca.Leaf)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	k := &kubelet.Server{Dir: ts.MkAbs(".")}
	k.Start(l, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients})
	ts.Defer(func() {
		k.CloseClientConnections() // connections of servers that still run at the end of the script
		k.Close()
	})
	ts.Setenv("KUBELET_PORT", strconv.Itoa(k.Port()))
}

// runTunnel runs a Konnectivity server and its agent until the end of the script: tunnel http-connect|grpc SOCKET.
// For every host, the agent connects to this machine.
func runTunnel(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: tunnel http-connect|grpc socket")
	}
	l, err := net.Listen("unix", ts.MkAbs(args[1]))
	ts.Check(err)
	s, err := tunnel.Start(l, server.Mode(args[0]), nil)
	ts.Check(err)
	ts.Defer(s.Close)
}
