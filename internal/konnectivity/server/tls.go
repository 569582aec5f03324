package server

import (
	"context"
	"crypto/tls"
	"fmt"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// TLS is what one of the two sides sees of the server, in files that are read again when they change. A connection that is open
// stays as it is.
type TLS struct {
	CertFile, KeyFile string   // PEM
	ClientCAFile      string   // clients need a certificate of these CAs; "": none is asked for
	MinVersion        uint16   // of crypto/tls
	CipherSuites      []uint16 // up to TLS 1.2; nil: Go's
}

// config reads the files, and follows them until ctx is done. Errors name the flags by their common beginning.
func (t TLS) config(ctx context.Context, side string, protocols ...string) (*tls.Config, error) {
	base := &tls.Config{MinVersion: t.MinVersion, CipherSuites: t.CipherSuites, NextProtos: protocols}
	pair, err := dynamiccertificates.NewDynamicServingContentFromFiles(side, t.CertFile, t.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("--%s-cert, --%[1]s-key: %[2]w", side, err)
	}
	var cas dynamiccertificates.CAContentProvider
	if t.ClientCAFile != "" {
		file, err := dynamiccertificates.NewDynamicCAContentFromFile(side, t.ClientCAFile)
		if err != nil {
			return nil, fmt.Errorf("--%s-ca-cert: %w", side, err)
		}
		cas, base.ClientAuth = file, tls.RequireAndVerifyClientCert
	}
	follow := dynamiccertificates.NewDynamicServingCertificateController(base, cas, pair, nil, nil)
	pair.AddListener(follow)
	if err := follow.RunOnce(); err != nil {
		return nil, fmt.Errorf("--%s-cert %s: %w", side, t.CertFile, err)
	}
	if file, asked := cas.(*dynamiccertificates.DynamicFileCAContent); asked {
		file.AddListener(follow)
		go file.Run(ctx, 1)
	}
	go pair.Run(ctx, 1)
	go follow.Run(1, ctx.Done())
	served := base.Clone() // follow reads base
	served.GetConfigForClient = follow.GetConfigForClient
	return served, nil
}
