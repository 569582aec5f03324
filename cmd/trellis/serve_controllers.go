package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/trellis-k8s/trellis/internal/controllers"
)

// clusterSigning is what the flags of the controller that signs certificates begin with.
const clusterSigning = "cluster-signing-"

// bindControllers declares the flags of kube-controller-manager's.
func (f *serveFlags) bindControllers(flags *pflag.FlagSet) {
	flags.StringSliceVar(&f.config.Controllers, "controllers", []string{"*"},
		"controllers of kube-controller-manager that run, '*' for all, '-name' for one that does not: "+strings.Join(controllers.Controllers(), ", ")+"; these run unless '-name' or '-*' says otherwise: "+strings.Join(controllers.Loops, ", "))
	flags.DurationVar(&f.config.ClusterSigning.Duration, clusterSigning+"duration", 365*24*time.Hour,
		"how long the certificates are good for at most that CertificateSigningRequests ask for")
	all := &f.config.ClusterSigning.DefaultCA
	flags.StringVar(&all.CertFile, clusterSigning+"cert-file", "", "file of the CA that signs these certificates; by default the CA in the data directory does")
	flags.StringVar(&all.KeyFile, clusterSigning+"key-file", "", "file of its key")
	f.signers = map[string]*controllers.CA{}
	for name, signer := range controllers.Signers {
		ca := &controllers.CA{}
		f.signers[name] = ca
		flags.StringVar(&ca.CertFile, clusterSigning+name+"-cert-file", "", "file of the CA that signs those for "+signer+" alone; signers that are not given one then sign nothing")
		flags.StringVar(&ca.KeyFile, clusterSigning+name+"-key-file", "", "file of its key")
	}
}

func (f *serveFlags) checkControllers() error {
	if err := controllers.CheckControllers(f.config.Controllers); err != nil {
		return fmt.Errorf("--controllers: %w", err)
	}
	c := &f.config.ClusterSigning
	if c.Duration <= 0 {
		return errors.New("--cluster-signing-duration: must be more than 0")
	}
	if c.DefaultCA.Incomplete() {
		return errors.New("--cluster-signing-cert-file and --cluster-signing-key-file: name both or none")
	}
	c.SignerCAs = map[string]controllers.CA{}
	for name, ca := range f.signers {
		switch {
		case ca.Incomplete():
			return fmt.Errorf("--%s%s-cert-file and --%[1]s%[2]s-key-file: name both or none", clusterSigning, name)
		case ca.CertFile != "" && c.DefaultCA.CertFile != "":
			return fmt.Errorf("--%scert-file, --%[1]s%s-cert-file: cannot specify default and per controller certs at the same time", clusterSigning, name)
		case ca.CertFile != "":
			c.SignerCAs[name] = *ca
		}
	}
	return nil
}
