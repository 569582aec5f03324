package controllers

import (
	"context"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	"k8s.io/kubernetes/pkg/controller/certificates/signer"
)

// Signing says who signs the certificates that CertificateSigningRequests ask for.
type Signing struct {
	// ServerCA returns the files of the CA that signs for all where no other is given, and what to do when they are needed no longer.
	ServerCA func() (cert, key string, done func(), err error)
	// DefaultCA is the CA of all signers that is given, By those of single ones; then the others sign nothing.
	DefaultCA CA
	SignerCAs map[string]CA
	Duration  time.Duration // that certificates are good for at most; 0: a year
}

// CA are the files of a certificate and of its key.
type CA struct{ CertFile, KeyFile string }

// Incomplete is true where one of the two is missing.
func (c CA) Incomplete() bool { return (c.CertFile == "") != (c.KeyFile == "") }

// Signers are the signers of Kubernetes', by what the flags of kube-controller-manager call them.
var Signers = map[string]string{
	"kubelet-serving":       certificatesv1.KubeletServingSignerName,
	"kubelet-client":        certificatesv1.KubeAPIServerClientKubeletSignerName,
	"kube-apiserver-client": certificatesv1.KubeAPIServerClientSignerName,
	"legacy-unknown":        certificatesv1beta1.LegacyUnknownSignerName,
}

// openSigners makes the controller that signs what has been approved.
func openSigners(ctx context.Context, u *Upstream) (run func(context.Context), err error) {
	all, done := u.Signing.DefaultCA, func() {}
	if all == (CA{}) && len(u.Signing.SignerCAs) == 0 {
		if all.CertFile, all.KeyFile, done, err = u.Signing.ServerCA(); err != nil {
			return nil, err
		}
	}
	duration := u.Signing.Duration
	if duration == 0 {
		duration = 365 * 24 * time.Hour
	}
	var runs []func(context.Context)
	for name, of := range Signers {
		ca := all
		if len(u.Signing.SignerCAs) > 0 {
			ca = u.Signing.SignerCAs[name]
		}
		if ca == (CA{}) {
			continue
		}
		s, err := signer.NewCSRSigningController(ctx, "csrsigning-"+name, of, u.client, u.informers.Certificates().V1().CertificateSigningRequests(), ca.CertFile, ca.KeyFile, duration)
		if err != nil {
			done()
			return nil, err
		}
		runs = append(runs, func(ctx context.Context) { s.Run(ctx, workers) })
	}
	return func(ctx context.Context) {
		defer done()
		var running sync.WaitGroup
		for _, run := range runs {
			running.Go(func() { run(ctx) })
		}
		running.Wait()
	}, nil
}
