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

// nodeUser is who the API server knows a node as.
func nodeUser(name string) string { return "system:node:" + name }

// identify returns a client configuration of the node's own. If it was not the node who has started it, that is one with a certificate,
// which is kept in dir and renewed; whoever has started it approves this, and the one that the kubelet serves with, if he may.
func identify(ctx context.Context, starter *rest.Config, name, dir string, address net.IP) (*rest.Config, error) {
	client, err := kubernetes.NewForConfig(starter)
	if err != nil {
		return nil, err
	}
	var review *authenticationv1.SelfSubjectReview
	err = untilAnswered(ctx, func() (err error) {
		review, err = client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ask %s who this is: %w", starter.Host, err)
	}
	if review.Status.UserInfo.Username == nodeUser(name) {
		return starter, nil
	}
	own := rest.AnonymousClientConfig(starter)
	certificates, err := certificate.NewKubeletClientCertificateManager(dir, types.NodeName(name), nil, nil, "", "",
		func(current *tls.Certificate) (kubernetes.Interface, error) {
			if current == nil {
				return client, nil
			}
			return kubernetes.NewForConfig(own)
		})
	if err != nil {
		return nil, err
	}
	a := approver{client: client.CertificatesV1().CertificateSigningRequests(), node: name, starter: review.Status.UserInfo.Username, address: address}
	go a.run(ctx)
	certificates.Start()
	context.AfterFunc(ctx, certificates.Stop)
	err = wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(context.Context) (bool, error) { return certificates.Current() != nil, nil })
	if err != nil {
		return nil, errors.New("stopped before somebody had approved its CertificateSigningRequest, or it was signed")
	}
	if _, err = certificate.UpdateTransport(klog.FromContext(ctx), ctx.Done(), own, certificates, 0); err != nil {
		return nil, err
	}
	if own.Proxy != nil { // a proxy-url, of which upstream's transport knows nothing
		own.Transport.(*http.Transport).Proxy = own.Proxy
	}
	return own, nil
}

// untilAnswered asks an API server again as long as there is none. What it answers, a refusal too, is returned.
func untilAnswered(ctx context.Context, ask func() error) (err error) {
	_ = wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		if err = ask(); err == nil || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
			return true, nil
		}
		klog.FromContext(ctx).Error(err, "The API server does not answer yet")
		return false, nil
	})
	return err
}

// trustClients writes down the CA of whom the API server believes to be who they say, and so of itself, for the kubelet to believe: the
// one that it tells extension API servers, or where it tells none its own.
func trustClients(ctx context.Context, starter *rest.Config, file string) error {
	client, err := kubernetes.NewForConfig(starter)
	if err != nil {
		return err
	}
	ca := starter.CAData
	told, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
	switch {
	case err == nil && told.Data["client-ca-file"] != "":
		ca = []byte(told.Data["client-ca-file"])
	case err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err):
		return fmt.Errorf("the CA of clients: %w", err)
	}
	return os.WriteFile(file, ca, 0o600)
}
