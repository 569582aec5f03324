package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
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
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
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
	_, err = certificate.UpdateTransport(klog.FromContext(ctx), ctx.Done(), own, certificates, 0)
	return own, err
}
