package server

import (
	"context"
	"crypto/tls"
	"fmt"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// TLS configures the certificates of one listener. Changed files are read again, and affect only new
// connections.
type TLS struct {
	CertFile, KeyFile string   // PEM
	ClientCAFile      string   // clients need a certificate of these CAs; "" means that none is requested
	MinVersion        uint16   // of crypto/tls
	CipherSuites      []uint16 // for TLS 1.2 and older; nil means Go's default
}

// config reads the files, and reloads them until ctx is done. Errors contain the names of the flags, which begin
// with side: "cluster" or "server".
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
	controller := dynamiccertificates.NewDynamicServingCertificateController(base, cas, pair, nil, nil)
	pair.AddListener(controller)
	if err := controller.RunOnce(); err != nil {
		return nil, fmt.Errorf("--%s-cert %s: %w", side, t.CertFile, err)
	}
	if file, hasFile := cas.(*dynamiccertificates.DynamicFileCAContent); hasFile {
		file.AddListener(controller)
		go file.Run(ctx, 1)
	}
	go pair.Run(ctx, 1)
	go controller.Run(1, ctx.Done())
	served := base.Clone() // the controller reads base concurrently
	served.GetConfigForClient = controller.GetConfigForClient
	return served, nil
}
