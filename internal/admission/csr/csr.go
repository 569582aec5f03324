// Package csr is the admission of requests for certificates.
package csr

import (
	"context"
	"encoding/base64"
	"fmt"
	"reflect"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/certauthorization"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/object"
)

// Plugin keeps certificates for who may approve or sign them: upstream's plugins CertificateApproval,
// CertificateSigning and CertificateSubjectRestriction.
type Plugin struct {
	Authorizer authorizer.UnconditionalAuthorizer
}

var requests = certificatesv1.Resource("certificatesigningrequests")

// Handles implements admission.Plugin.
func (Plugin) Handles(o admission.Operation) bool {
	return o == admission.Create || o == admission.Update
}

// Admit implements admission.Plugin.
func (Plugin) Admit(context.Context, *admission.Request) error { return nil }

// Validate implements admission.Plugin.
func (c Plugin) Validate(ctx context.Context, r *admission.Request) error {
	if r.Resource.GroupResource() != requests {
		return nil
	}
	switch {
	case r.Operation == admission.Create && r.Subresource == "":
		return noMasters(ctx, r)
	case r.Operation == admission.Update && r.Subresource == "approval":
		return c.may(ctx, r, "approve")
	case r.Operation == admission.Update && r.Subresource == "status":
		return c.may(ctx, r, "sign")
	}
	return nil
}

// may refuses who must not approve or sign for the signer of the request that is there.
func (c Plugin) may(ctx context.Context, r *admission.Request, verb string) error {
	before, err := r.Objects.Old(ctx, r.Version)
	if err != nil {
		return err
	}
	if verb == "sign" {
		after, err := r.Objects.New(ctx, r.Version)
		if err != nil {
			return err
		}
		if same(before, after, "certificate") && same(before, after, "conditions") {
			return nil
		}
	}
	signer := object.String(part(before, "spec"), "signerName")
	if certauthorization.IsAuthorizedForSignerName(ctx, c.Authorizer, r.User, verb, signer) {
		return nil
	}
	return apierrors.NewForbidden(requests, r.Name, fmt.Errorf("user not permitted to %s requests with signerName %q", verb, signer))
}

// noMasters refuses a request for a certificate that would make somebody an administrator.
func noMasters(ctx context.Context, r *admission.Request) error {
	t, err := r.Objects.New(ctx, r.Version)
	if err != nil {
		return err
	}
	spec := part(t, "spec")
	if object.String(spec, "signerName") != certificatesv1.KubeAPIServerClientSignerName {
		return nil
	}
	text, err := base64.StdEncoding.DecodeString(object.String(spec, "request"))
	if err != nil {
		return apierrors.NewBadRequest(err.Error()) // it has been decoded before
	}
	asked, err := certificates.ParseCSR(text)
	switch {
	case err != nil:
		err = fmt.Errorf("failed to parse CSR: %v", err)
	case slices.Contains(asked.Subject.Organization, user.SystemPrivilegedGroup):
		err = fmt.Errorf("use of %s signer with system:masters group is not allowed", certificatesv1.KubeAPIServerClientSignerName)
	default:
		return nil
	}
	return apierrors.NewForbidden(requests, r.ObjectName(ctx), err)
}

// part is an object's field that is an object.
func part(t object.Tree, name string) object.Tree {
	p, _ := t[name].(map[string]any)
	return p
}

func same(a, b object.Tree, field string) bool {
	return reflect.DeepEqual(part(a, "status")[field], part(b, "status")[field])
}
