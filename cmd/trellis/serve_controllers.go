package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/trellis-k8s/trellis/internal/controllers"
	"github.com/trellis-k8s/trellis/internal/controllers/upstream"
)

// clusterSigning is the prefix of the flags of the controller that signs certificates.
const clusterSigning = "cluster-signing-"

// bindControllers declares the flags of the controllers. They are flags of kube-controller-manager.
func (f *serveFlags) bindControllers(flags *pflag.FlagSet) {
	flags.StringSliceVar(&f.config.Controllers, "controllers", []string{"*"},
		"controllers of kube-controller-manager to run: names, '*' for all, or '-NAME' to disable one. The names are "+
			strings.Join(upstream.Names(), ", ")+
			". The following also run unless '-NAME' or '-*' disables them: "+
			strings.Join(controllers.TrellisControllers, ", "))
	flags.DurationVar(&f.config.ClusterSigning.Duration, clusterSigning+"duration", 365*24*time.Hour,
		"maximum lifetime of the certificates that are issued for CertificateSigningRequests")
	all := &f.config.ClusterSigning.DefaultCA
	flags.StringVar(&all.CertFile, clusterSigning+"cert-file", "",
		"file of the CA certificate for all signers (empty means the CA in the data directory)")
	flags.StringVar(&all.KeyFile, clusterSigning+"key-file", "",
		"file of the private key of --cluster-signing-cert-file")
	f.signers = map[string]*upstream.CA{}
	for name, signer := range upstream.Signers {
		ca := &upstream.CA{}
		f.signers[name] = ca
		flags.StringVar(&ca.CertFile, clusterSigning+name+"-cert-file", "",
			"file of the CA certificate for the signer "+signer+
				". If any signer has its own CA, signers that have none sign nothing")
		flags.StringVar(&ca.KeyFile, clusterSigning+name+"-key-file", "",
			"file of the private key of --"+clusterSigning+name+"-cert-file")
	}
}

// checkControllers validates the flags of the controllers.
func (f *serveFlags) checkControllers() error {
	if err := controllers.CheckControllers(f.config.Controllers); err != nil {
		return fmt.Errorf("--controllers: %w", err)
	}
	c := &f.config.ClusterSigning
	if c.Duration <= 0 {
		return errors.New("--cluster-signing-duration must be greater than 0")
	}
	if c.DefaultCA.Incomplete() {
		return errors.New("--cluster-signing-cert-file and --cluster-signing-key-file must be set together")
	}
	c.SignerCAs = map[string]upstream.CA{}
	for name, ca := range f.signers {
		switch {
		case ca.Incomplete():
			return fmt.Errorf("--%s%s-cert-file and --%[1]s%[2]s-key-file must be set together", clusterSigning, name)
		case ca.CertFile != "" && c.DefaultCA.CertFile != "":
			return fmt.Errorf("--%scert-file, --%[1]s%s-cert-file: cannot specify default and per controller certs "+
				"at the same time", clusterSigning, name)
		case ca.CertFile != "":
			c.SignerCAs[name] = *ca
		}
	}
	return nil
}
