package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/certificate"
)

// nodeUser returns the user name of a node.
func nodeUser(name string) string { return "system:node:" + name }

// nodeClientConfig returns the client configuration of the node. If the configuration user authenticates as the node,
// nodeClientConfig returns user. Otherwise the node requests a certificate, stores it in the folder dir, and renews
// it. If user may approve requests, nodeClientConfig approves the requests for the client certificate and for the
// kubelet's serving certificate. nodeClientConfig blocks until the certificate is issued.
func nodeClientConfig(ctx context.Context, user *rest.Config, name, dir string, address net.IP) (*rest.Config, error) {
	userClient, err := kubernetes.NewForConfig(user)
	if err != nil {
		return nil, err
	}
	var review *authenticationv1.SelfSubjectReview
	err = retryUntilResponse(ctx, func() (err error) {
		review, err = userClient.AuthenticationV1().SelfSubjectReviews().Create(ctx,
			&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot get the user name for the kubeconfig from the API server %s: %w", user.Host, err)
	}
	if review.Status.UserInfo.Username == nodeUser(name) {
		return user, nil
	}
	node := rest.AnonymousClientConfig(user)
	certificates, err := certificate.NewKubeletClientCertificateManager(dir, types.NodeName(name), nil, nil, "", "",
		func(current *tls.Certificate) (kubernetes.Interface, error) {
			if current == nil {
				return userClient, nil
			}
			return kubernetes.NewForConfig(node)
		})
	if err != nil {
		return nil, err
	}
	a := approver{
		client: userClient.CertificatesV1().CertificateSigningRequests(), nodeName: name,
		user: review.Status.UserInfo.Username, address: address,
	}
	go a.run(ctx)
	certificates.Start()
	context.AfterFunc(ctx, certificates.Stop)
	err = wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(context.Context) (bool, error) {
		return certificates.Current() != nil, nil
	})
	if err != nil {
		return nil, errors.New("the node stopped before its CertificateSigningRequest was approved and signed")
	}
	if _, err = certificate.UpdateTransport(klog.FromContext(ctx), ctx.Done(), node, certificates, 0); err != nil {
		return nil, err
	}
	if node.Proxy != nil { // upstream's transport ignores the proxy-url
		node.Transport.(*http.Transport).Proxy = node.Proxy
	}
	return node, nil
}

// retryUntilResponse repeats a request until the API server responds. If the response is an error, it returns that
// error.
func retryUntilResponse(ctx context.Context, request func() error) (err error) {
	_ = wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		if err = request(); err == nil || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
			return true, nil
		}
		klog.FromContext(ctx).Error(err, "The API server does not respond yet")
		return false, nil
	})
	return err
}

// writeClientCA writes the client CA to a file. With this CA, the kubelet authenticates its clients, including the API
// server. The API server publishes the CA for extension API servers. If it does not, writeClientCA uses the CA of the
// kubeconfig.
func writeClientCA(ctx context.Context, config *rest.Config, file string) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ca := config.CAData
	authentication, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx,
		"extension-apiserver-authentication", metav1.GetOptions{})
	switch {
	case err == nil && authentication.Data["client-ca-file"] != "":
		ca = []byte(authentication.Data["client-ca-file"])
	case err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err):
		return fmt.Errorf("cannot get the client CA of the cluster: %w", err)
	}
	return os.WriteFile(file, ca, 0o600)
}
