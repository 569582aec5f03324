package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"text/template"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"

	"github.com/trellis-k8s/trellis/internal/access/pki"
	"github.com/trellis-k8s/trellis/internal/controllers/manifests"
	"github.com/trellis-k8s/trellis/internal/ownership"
	"github.com/trellis-k8s/trellis/internal/specialip"
)

//go:embed extension/install.yaml
var installManifest string

// tokenLifetime is the lifetime of the token in the kubeconfig of an extension server outside the cluster.
const tokenLifetime = 365 * 24 * time.Hour

func newExtension() *cobra.Command {
	cmd := &cobra.Command{Use: "extension", Short: "Install extension API servers",
		Args: takes("a command", 0, 0)}
	cmd.AddCommand(newExtensionInstall())
	return cmd
}

// installation holds the values of the flags of extension install, and the values for its manifests.
type installation struct {
	Namespace, Service, Group, Version string
	Image                              string
	Host                               string // host name of the server if Image is ""
	Port                               int

	Certificate, Key, CABundle string // base64 of PEM

	kubeconfig, dir string
	dryRun          bool
}

// Local reports whether the extension server runs at a loopback address of the API server's machine. The template of
// the manifests calls it.
func (i *installation) Local() bool {
	addr, ok := specialip.Parse(i.Host)
	return i.Image == "" && ok && addr.Unmap().IsLoopback()
}

func newExtensionInstall() *cobra.Command {
	var i installation
	cmd := &cobra.Command{
		Use:   "install NAME",
		Short: "Create the objects of an extension API server and register the server",
		Long: `Create the objects that an extension API server needs in a cluster, and register the server.

The objects are a namespace, a serving certificate with a separate CA, a ServiceAccount with roles for delegated
authentication and authorization, a Service called NAME, and an APIService. The APIService adds the group and version
to the API.

If --image is set, the extension server runs in the cluster as a Deployment. Otherwise it runs outside the cluster
on the host --external-name. In this case the command writes the files tls.crt, tls.key and kubeconfig to the folder
--dir. The kubeconfig contains a token of the ServiceAccount that is valid for a year. If the folder already has a
certificate, the command uses this certificate.

The default of --external-name is localhost. The API server connects to localhost only if trellis serve has the
flag --allow-local-services=NAMESPACE/NAME.

If neither --kubeconfig nor KUBECONFIG is set, the command uses .trellis/admin.kubeconfig.`,
		Example: `  trellis extension install wardle-server --group wardle.example.com --version v1alpha1 --port 8443
  trellis extension install wardle-server --group wardle.example.com --version v1alpha1 --image example.com/wardle:1`,
		Args: takes("one NAME", 1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			i.Service = args[0]
			return i.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&i.Group, "group", "", "API group that the extension server serves")
	flags.StringVar(&i.Version, "version", "", "version of the API group")
	flags.StringVar(&i.Namespace, "namespace", "", "namespace of the objects (empty means NAME)")
	flags.StringVar(&i.Image, "image", "",
		"container image of the extension server (empty means that it runs outside the cluster)")
	flags.StringVar(&i.Host, "external-name", "localhost", "host name of the extension server when --image is not set")
	flags.IntVar(&i.Port, "port", 8443, "port of the extension server")
	flags.StringVar(&i.dir, "dir", "", "folder for the certificate and the kubeconfig (empty means NAME)")
	flags.BoolVar(&i.dryRun, "dry-run", false, "print the manifests, but create no objects")
	flags.StringVar(&i.kubeconfig, "kubeconfig", "",
		"kubeconfig of the API server (empty means the environment variable KUBECONFIG, or "+defaultKubeconfig+")")
	return cmd
}

func (i *installation) run(ctx context.Context, out io.Writer) error {
	if err := i.complete(); err != nil {
		return err
	}
	if err := i.certify(); err != nil {
		return err
	}
	var text bytes.Buffer
	if err := template.Must(template.New("install").Parse(installManifest)).Execute(&text, i); err != nil {
		return err
	}
	if i.dryRun {
		_, err := out.Write(text.Bytes())
		return err
	}
	config, err := clientConfig(i.kubeconfig)
	if err != nil {
		return err
	}
	file := filepath.Join(i.dir, "manifests.yaml")
	if err := pki.WriteFile(file, text.Bytes()); err != nil {
		return err
	}
	if err := manifests.Apply(ctx, config, []string{file}, out); err != nil {
		return err
	}
	if i.Image != "" {
		return nil
	}
	return i.writeKubeconfig(ctx, config, out)
}

// complete sets defaults and validates the names.
func (i *installation) complete() error {
	if i.Namespace == "" {
		i.Namespace = i.Service
	}
	if i.dir == "" {
		i.dir = i.Service
	}
	for _, c := range []struct {
		flag, value string
		check       func(string) []string
	}{
		{"NAME", i.Service, validation.IsDNS1035Label},
		{"--namespace", i.Namespace, validation.IsDNS1123Label},
		{"--group", i.Group, validation.IsDNS1123Subdomain},
		{"--version", i.Version, validation.IsDNS1035Label},
		{"--external-name", i.Host, validation.IsDNS1123Subdomain},
	} {
		if problems := c.check(c.value); len(problems) > 0 {
			return fmt.Errorf("%s: %q: %s", c.flag, c.value, problems[0])
		}
	}
	if problems := validation.IsValidPortNum(i.Port); len(problems) > 0 {
		return fmt.Errorf("--port: %s", problems[0])
	}
	return nil
}

// certify reads the certificate in the folder, or creates one with a separate CA.
func (i *installation) certify() error {
	file := func(name string) string { return filepath.Join(i.dir, name) }
	certificate, err := ownership.ReadFile(file("tls.crt"))
	key, keyErr := ownership.ReadKey(file("tls.key"))
	if errors.Is(err, fs.ErrNotExist) {
		name := i.Service + "." + i.Namespace + ".svc"
		if certificate, key, err = cert.GenerateSelfSignedCertKey(name, nil, []string{i.Host}); err != nil {
			return err
		}
		if !i.dryRun {
			keyErr = errors.Join(os.MkdirAll(i.dir, 0o700), pki.WriteFile(file("tls.key"), key),
				pki.WriteFile(file("tls.crt"), certificate))
		} else {
			keyErr = nil
		}
	}
	if err := errors.Join(err, keyErr); err != nil {
		return err
	}
	leaf, rest := pem.Decode(certificate)
	if ca, _ := pem.Decode(rest); leaf == nil || ca == nil {
		return fmt.Errorf("%s must contain a certificate followed by the certificate of its CA", file("tls.crt"))
	}
	encode := base64.StdEncoding.EncodeToString
	i.Certificate, i.Key, i.CABundle = encode(certificate), encode(key), encode(bytes.TrimSpace(rest))
	return nil
}

// writeKubeconfig writes a kubeconfig for the ServiceAccount and prints the flags of the server.
func (i *installation) writeKubeconfig(ctx context.Context, config *rest.Config, out io.Writer) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	seconds := int64(tokenLifetime.Seconds())
	review := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	review, err = client.CoreV1().ServiceAccounts(i.Namespace).CreateToken(ctx, i.Service, review,
		metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create a token for ServiceAccount %s/%s: %w", i.Namespace, i.Service, err)
	}
	c := clientcmdapi.NewConfig()
	c.Clusters["main"] = &clientcmdapi.Cluster{Server: config.Host, TLSServerName: config.ServerName,
		CertificateAuthorityData: config.CAData, InsecureSkipTLSVerify: config.Insecure}
	c.AuthInfos[i.Service] = &clientcmdapi.AuthInfo{Token: review.Status.Token}
	c.Contexts["main"] = &clientcmdapi.Context{Cluster: "main", AuthInfo: i.Service, Namespace: i.Namespace}
	c.CurrentContext = "main"
	data, err := clientcmd.Write(*c)
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(i.dir, "kubeconfig")
	if err := pki.WriteFile(kubeconfig, data); err != nil {
		return err
	}
	if i.Local() {
		fmt.Fprintf(out, "\nThe API server must run with --allow-local-services=%s/%s.\n", i.Namespace, i.Service)
	}
	fmt.Fprintf(out,
		"\nStart the extension server with these flags:\n  --secure-port %d --tls-cert-file %s "+
			"--tls-private-key-file %s --kubeconfig %s --authentication-kubeconfig %[4]s --authorization-kubeconfig "+
			"%[4]s\n",
		i.Port, filepath.Join(i.dir, "tls.crt"), filepath.Join(i.dir, "tls.key"), kubeconfig)
	return nil
}
