package upstream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/spf13/pflag"
	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	"k8s.io/kubernetes/pkg/controller/certificates/signer"
	"k8s.io/utils/ptr"

	"github.com/trellis-k8s/trellis/internal/flags"
)

// Signing configures the CAs that sign CertificateSigningRequests.
type Signing struct {
	// ServerCA returns the files of the server's CA. This CA is used if neither DefaultCA nor SignerCAs is set. done
	// releases the files.
	ServerCA func() (cert, key string, done func(), err error)
	// DefaultCA is the CA of all signers. It is ignored if SignerCAs is set.
	DefaultCA CA
	// SignerCAs holds a separate CA for each signer. Its keys are names in Signers. If SignerCAs is set, a signer
	// that is not in it signs nothing.
	SignerCAs map[string]*CA
	Duration  time.Duration // maximum validity of certificates; 0 means a year
}

// CA holds the paths of the files of a CA's certificate and key.
type CA struct{ CertFile, KeyFile string }

// Signers maps the names in kube-controller-manager's flags --cluster-signing-* to the signers of Kubernetes.
var Signers = map[string]string{
	"kubelet-serving":       certificatesv1.KubeletServingSignerName,
	"kubelet-client":        certificatesv1.KubeAPIServerClientKubeletSignerName,
	"kube-apiserver-client": certificatesv1.KubeAPIServerClientSignerName,
	"legacy-unknown":        certificatesv1beta1.LegacyUnknownSignerName,
}

// AddFlags declares the flags, which are those of kube-controller-manager.
func (s *Signing) AddFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&s.Duration, "cluster-signing-duration", 365*24*time.Hour,
		"maximum lifetime of the certificates that are issued for CertificateSigningRequests")
	s.DefaultCA.addFlags(fs, "cluster-signing", " for all signers (empty means the CA in the data directory)")
	s.SignerCAs = map[string]*CA{}
	for name, signer := range Signers {
		s.SignerCAs[name] = &CA{}
		s.SignerCAs[name].addFlags(fs, "cluster-signing-"+name, " for the signer "+signer+
			". If any signer has its own CA, signers that have none sign nothing")
	}
}

func (c *CA) addFlags(fs *pflag.FlagSet, prefix, purpose string) {
	fs.StringVar(&c.CertFile, prefix+"-cert-file", "", "file of the CA certificate"+purpose)
	fs.StringVar(&c.KeyFile, prefix+"-key-file", "", "file of the private key of --"+prefix+"-cert-file")
	flags.Pair(fs, prefix+"-cert-file", prefix+"-key-file")
}

// Validate returns an error if a flag has an invalid value.
func (s *Signing) Validate() error {
	if s.Duration <= 0 {
		return errors.New("--cluster-signing-duration must be greater than 0")
	}
	maps.DeleteFunc(s.SignerCAs, func(_ string, ca *CA) bool { return *ca == CA{} })
	for name := range s.SignerCAs {
		if s.DefaultCA.CertFile != "" {
			return fmt.Errorf("--cluster-signing-cert-file, --cluster-signing-%s-cert-file: cannot specify default "+
				"and per controller certs at the same time", name)
		}
	}
	return nil
}

// openSigners creates the controller that signs approved requests.
func openSigners(ctx context.Context, u *Manager) (run func(context.Context), err error) {
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
	for name, signerName := range Signers {
		ca := all
		if len(u.Signing.SignerCAs) > 0 {
			ca = ptr.Deref(u.Signing.SignerCAs[name], CA{})
		}
		if ca == (CA{}) {
			continue
		}
		requests := u.informers.Certificates().V1().CertificateSigningRequests()
		s, err := signer.NewCSRSigningController(
			ctx, "csrsigning-"+name, signerName, u.client, requests, ca.CertFile, ca.KeyFile, duration)
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
