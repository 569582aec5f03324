package compat_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"

	"github.com/trellis-k8s/trellis/internal/fixture/program"
	"github.com/trellis-k8s/trellis/internal/fixture/replicas"
)

// TestCertManagerOnReplicas checks that the operator works on three servers behind a load balancer while one after the
// other is killed. Its programs survive, certificates are issued and renewed, and only the dependents of a deleted
// object are garbage collected.
func TestCertManagerOnReplicas(t *testing.T) {
	if testing.Short() {
		t.Skip("takes two minutes; skipped with -short")
	}
	certManagerChart(t)
	servers := replicas.Start(t, func() string { return program.Build(t) }, "127.0.0.",
		"--allow-local-services="+certManagerNamespace+"/"+certManagerWebhook)
	stop := servers.KillInTurn()
	c := installCertManager(t, servers.Config, true)
	c.waitForInjector()
	c.waitForWebhook()
	c.issueCertificates()
	c.checkRequesters()
	c.checkRejection()
	c.issueCertificate("doomed", map[string]any{"commonName": "doomed", "issuerRef": map[string]any{"name": "root"}})
	before := c.objects()
	// It is renewed every ten seconds.
	c.issueCertificate("short", map[string]any{"commonName": "short", "issuerRef": map[string]any{"name": "root"},
		"duration": "1h", "renewBefore": "59m50s"})
	c.must(c.resource("certificates").Delete(t.Context(), "doomed", metav1.DeleteOptions{}))
	c.waitFor(c.resource("certificates"), "short",
		func(o *unstructured.Unstructured) bool { return revisionOf(o) >= 3 })
	stop()

	for _, name := range []string{"root", "leaf", "short"} {
		c.waitReady("certificates", name)
	}
	c.waitForCollection()
	c.checkRevisions()
	after := c.objects()
	for uid, o := range before {
		if after[uid] == nil && !strings.HasPrefix(o.GetName(), "doomed") && !c.mayEnd(o) {
			t.Errorf("%s %s/%s with UID %s has been deleted", o.GetKind(), o.GetNamespace(), o.GetName(), uid)
		}
	}
	for name, p := range c.programs {
		select {
		case <-p.ended:
			t.Errorf("%s has ended: %s", name, strings.Join(p.errors[max(0, len(p.errors)-5):], "\n"))
		default:
		}
	}
}

func revisionOf(certificate *unstructured.Unstructured) int64 {
	revision, _, _ := unstructured.NestedInt64(certificate.Object, "status", "revision")
	return revision
}

// objects returns all objects by UID.
func (c *certManager) objects() map[types.UID]*unstructured.Unstructured {
	c.Helper()
	_, groups, err := c.core.Discovery().ServerGroupsAndResources()
	c.must(err)
	listed := discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, groups)
	kinds, err := discovery.GroupVersionResources(listed)
	c.must(err)
	all := map[types.UID]*unstructured.Unstructured{}
	for kind := range kinds {
		list, err := c.dynamic.Resource(kind).List(c.Context(), metav1.ListOptions{})
		c.must(err)
		for i := range list.Items {
			all[list.Items[i].GetUID()] = &list.Items[i]
		}
	}
	return all
}

// mayEnd reports whether cert-manager or the server may delete an object.
func (c *certManager) mayEnd(o *unstructured.Unstructured) bool {
	temporary := o.GetLabels()["cert-manager.io/next-private-key"] == "true"
	return temporary || o.GetKind() == "Lease" || o.GetKind() == "Event" || o.GetKind() == "EndpointSlice"
}

// waitForCollection waits until the dependents of the certificate "doomed" are deleted, and until the owners of all
// objects exist.
func (c *certManager) waitForCollection() {
	c.Helper()
	last := ""
	err := wait.PollUntilContextTimeout(c.Context(), 200*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) {
			last = ""
			all := c.objects()
			for _, o := range all {
				for _, owner := range o.GetOwnerReferences() {
					if all[owner.UID] == nil {
						last += fmt.Sprintf("%s %s has the owner %s %s %s, which does not exist\n", o.GetKind(),
							o.GetName(), owner.Kind, owner.Name, owner.UID)
					}
				}
				if o.GetKind() == "CertificateRequest" && strings.HasPrefix(o.GetName(), "doomed") {
					last += o.GetName() + " still exists\n"
				}
			}
			return last == "", nil
		})
	if err != nil {
		c.Errorf("%v: %s", err, last)
	}
}

// checkRevisions checks that each revision of a certificate has a CertificateRequest.
func (c *certManager) checkRevisions() {
	c.Helper()
	certificates, err := c.resource("certificates").List(c.Context(), metav1.ListOptions{})
	c.must(err)
	requests, err := c.resource("certificaterequests").List(c.Context(), metav1.ListOptions{})
	c.must(err)
	exists := map[string]bool{}
	for _, r := range requests.Items {
		a := r.GetAnnotations()
		exists[a["cert-manager.io/certificate-name"]+"/"+a["cert-manager.io/certificate-revision"]] = true
	}
	for _, one := range certificates.Items {
		for i := range revisionOf(&one) {
			if id := one.GetName() + "/" + strconv.FormatInt(i+1, 10); !exists[id] {
				c.Errorf("the CertificateRequest of revision %s does not exist", id)
			}
		}
	}
	c.Logf("%d certificates, %d requests", len(certificates.Items), len(requests.Items))
}
