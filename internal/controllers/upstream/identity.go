package upstream

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"os"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/kubernetes/pkg/controlplane/controller/apiserverleasegc"
	"k8s.io/utils/clock"

	"github.com/google/uuid"
)

const (
	apiServer     = "kube-apiserver"
	identityLabel = "apiserver.kubernetes.io/identity"

	// identityDuration is the validity of the Lease of an API server, in seconds.
	identityDuration = 3600
	identityRenewal  = 10 * time.Second
)

// identityOf returns the name of the Lease of a kube-apiserver on a host. (k8s.io/apiserver, pkg/server/config.go)
func identityOf(host string) string {
	var data []byte
	for _, part := range []string{host, apiServer} {
		data = append(binary.BigEndian.AppendUint16(data, uint16(len(part))), part...)
	}
	hash := sha256.Sum256(data)
	return "apiserver-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(hash[:16]))
}

// RunIdentity maintains the Lease of this server in kube-system until ctx is done, and then deletes it. The Leases list
// the API servers that are running. Like kube-apiserver, servers on the same host share a Lease.
func RunIdentity(ctx context.Context, client kubernetes.Interface) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	name := identityOf(host)
	c := lease.NewController(clock.RealClock{}, client, name+"_"+uuid.NewString(), identityDuration, nil,
		identityRenewal, name, metav1.NamespaceSystem, func(l *coordinationv1.Lease) error {
			if l.Labels == nil {
				l.Labels = map[string]string{}
			}
			l.Labels[identityLabel], l.Labels[corev1.LabelHostname] = apiServer, host
			return nil
		})
	// An earlier server on the host may have left a Lease with its identity. The new one replaces it.
	_ = client.CoordinationV1().Leases(metav1.NamespaceSystem).Delete(ctx, name, metav1.DeleteOptions{})
	c.Run(ctx)
	c.Stop()
	return nil
}

// RunIdentityCollector deletes the expired Leases of API servers every hour until ctx is done.
func RunIdentityCollector(ctx context.Context, client kubernetes.Interface) {
	apiserverleasegc.NewAPIServerLeaseGC(client, identityDuration*time.Second, metav1.NamespaceSystem,
		identityLabel+"="+apiServer).RunWithContext(ctx)
}
