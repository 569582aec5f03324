package accounts

import (
	"context"
	"fmt"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	apiserveraccount "k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/token/jwt"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/apis/authentication"
	"k8s.io/kubernetes/pkg/apis/authentication/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/trellis-k8s/trellis/internal/kinds/define"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Tokens holds the settings of the tokens of service accounts. A request that specifies no audiences is for Audiences.
type Tokens struct {
	Now           func() time.Time
	Head          func() *storage.Snapshot
	Issuer        serviceaccount.TokenGenerator // nil disables TokenRequests
	Audiences     authenticator.Audiences
	MaxExpiration time.Duration // 0 means no limit
}

// Subresources returns the subresource token of ServiceAccounts, which issues tokens
// (https://kubernetes.io/docs/reference/kubernetes-api/authentication-resources/token-request-v1/). It returns nothing
// if the server cannot sign tokens.
func Subresources(t Tokens) []resource.Subresource {
	if t.Issuer == nil {
		return nil
	}
	body := define.PostOnly(authenticationv1.SchemeGroupVersion,
		resource.Names{Kind: "TokenRequest", Plural: "tokenrequests"})
	i := &tokenIssuer{t, newAccounts(t.Head)}
	return []resource.Subresource{{Name: "token", Verbs: body.Definition.Verbs, Body: body, Respond: i.respond}}
}

// tokenIssuer answers TokenRequests.
type tokenIssuer struct {
	Tokens
	objects *accounts
}

var tokenRequest = schema.GroupKind{Group: authenticationv1.GroupName, Kind: "TokenRequest"}

// respond issues the requested token for the ServiceAccount with the given name, as upstream's TokenREST does.
func (t *tokenIssuer) respond(ctx context.Context, name string, body resource.Internal) (resource.Internal, error) {
	req, namespace := body.(*authentication.TokenRequest), apirequest.NamespaceValue(ctx)
	if err := checkTarget(req, namespace, name); err != nil {
		return nil, err
	}
	account, err := define.Internal[*core.ServiceAccount](t.objects.serviceAccounts, namespace+"/"+name)
	if err != nil {
		return nil, err
	}
	if req.UID != "" && req.UID != account.UID {
		return nil,
			apierrors.NewConflict(schema.GroupResource{Group: tokenRequest.Group, Resource: tokenRequest.Kind}, name,
				fmt.Errorf("the UID in the token request (%s) does not match the UID of the service account (%s)",
					req.UID, account.UID))
	}
	if len(req.Spec.Audiences) == 0 {
		req.Spec.Audiences = t.Audiences
	}
	now := t.Now()
	req.Name, req.Namespace, req.UID, req.CreationTimestamp = account.Name, account.Namespace, account.UID,
		metav1.NewTime(now)
	req.Status = authentication.TokenRequestStatus{}
	if errs := validation.ValidateTokenRequest(req); len(errs) != 0 {
		return nil, apierrors.NewInvalid(tokenRequest, "", errs)
	}
	bound, err := t.findBound(req, account)
	if err != nil {
		return nil, err
	}
	if longest := int64(t.MaxExpiration / time.Second); longest > 0 && req.Spec.ExpirationSeconds > longest {
		warning.AddWarning(ctx, "", fmt.Sprintf("requested expiration of %d seconds shortened to %d seconds",
			req.Spec.ExpirationSeconds, longest))
		req.Spec.ExpirationSeconds = longest
	}
	if req.Status.Token, err = t.sign(ctx, req, account, bound); err != nil {
		return nil, err
	}
	req.Status.ExpirationTimestamp = metav1.NewTime(now.Add(time.Duration(req.Spec.ExpirationSeconds) * time.Second))
	return req, nil
}

// checkTarget returns an error if the name or namespace in a request differs from those in its path.
func checkTarget(req *authentication.TokenRequest, namespace, name string) error {
	problem := func(part, value string) error {
		return apierrors.NewInvalid(tokenRequest, name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", part), value, "must match the service account "+part+
				" if specified")})
	}
	switch {
	case req.Name != "" && req.Name != name:
		return problem("name", req.Name)
	case req.Namespace != "" && req.Namespace != namespace:
		return problem("namespace", req.Namespace)
	}
	return nil
}

// boundObjects holds the objects that a token is bound to. The token becomes invalid when one of them is deleted. A
// field is nil if the token is not bound to an object of this kind.
type boundObjects struct {
	pod    *core.Pod
	secret *core.Secret
	node   *core.Node
}

// findBound returns the object in the request's boundObjectRef. The result is empty if the request has none.
func (t *tokenIssuer) findBound(req *authentication.TokenRequest, account *core.ServiceAccount) (b boundObjects,
	err error) {
	ref := req.Spec.BoundObjectRef
	if ref == nil {
		return b, nil
	}
	var uid types.UID
	gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	if kinds := []string{"Pod", "Node", "Secret"}; gvk.Group != "" || !slices.Contains(kinds, gvk.Kind) {
		return b, apierrors.NewBadRequest("cannot bind token to object of type " + gvk.String())
	}
	if err := define.ValidateName(ref.Name); err != nil {
		return b, err
	}
	switch gvk.Kind {
	case "Pod":
		if b, err = t.findBoundPod(account, ref.Name); err == nil {
			uid = b.pod.UID
		}
	case "Node":
		if b.node, err = define.Internal[*core.Node](t.objects.nodes, ref.Name); err == nil {
			uid = b.node.UID
		}
	case "Secret":
		b.secret, err = define.Internal[*core.Secret](t.objects.secrets, account.Namespace+"/"+ref.Name)
		if err == nil {
			uid = b.secret.UID
		}
	}
	if err == nil && ref.UID != "" && uid != ref.UID {
		err = apierrors.NewConflict(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, ref.Name, fmt.Errorf(
			"the UID in the bound object reference (%s) does not match the UID in record. The object might have "+
				"been deleted and then recreated", ref.UID))
	}
	return b, err
}

// findBoundPod returns a Pod and its node. It fails if the Pod does not use the account.
func (t *tokenIssuer) findBoundPod(account *core.ServiceAccount, name string) (b boundObjects, err error) {
	if b.pod, err = define.Internal[*core.Pod](t.objects.pods, account.Namespace+"/"+name); err != nil {
		return b, err
	}
	if b.pod.Spec.ServiceAccountName != account.Name {
		return b,
			apierrors.NewBadRequest(
				fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with different "+
					"serviceaccount name.", account.Name))
	}
	node := b.pod.Spec.NodeName
	if node == "" {
		return b, nil
	}
	b.node, err = define.Internal[*core.Node](t.objects.nodes, node)
	if apierrors.IsNotFound(err) {
		b.node, err = &core.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, nil // the claim contains only the name
	}
	return b, err
}

// extendedExpiration is the lifetime of a token that the volume of a Pod requests. It is long because old clients do
// not reload their tokens. The token also contains the requested lifetime, after which its use causes a warning.
const extendedExpiration = 365 * 24 * time.Hour

// sign returns the signed token, and records its ID in the audit event.
func (t *tokenIssuer) sign(ctx context.Context, req *authentication.TokenRequest, account *core.ServiceAccount,
	b boundObjects) (string, error) {
	var warnAfter int64
	seconds := req.Spec.ExpirationSeconds
	if b.pod != nil && seconds == serviceaccount.WarnOnlyBoundTokenExpirationSeconds &&
		t.isForServer(req.Spec.Audiences) {
		warnAfter, seconds = seconds, int64(extendedExpiration/time.Second)
		if t.MaxExpiration > 0 {
			seconds = min(seconds, int64(t.MaxExpiration/time.Second))
		}
	}
	public, private, err := serviceaccount.Claims(*account, b.pod, b.secret, b.node, nil, nil, seconds, warnAfter,
		req.Spec.Audiences, req.Spec.Attestations)
	if err != nil {
		return "", err
	}
	signed, err := t.Issuer.GenerateToken(ctx, public, private)
	if err != nil {
		return "", apierrors.NewInternalError(fmt.Errorf("failed to generate token: %v", err))
	}
	audit.AddAuditAnnotation(ctx, apiserveraccount.IssuedCredentialIDAuditAnnotationKey,
		jwt.CredentialIDForJTI(public.ID))
	return signed, nil
}

// isForServer reports whether all audiences are audiences of this server.
func (t *tokenIssuer) isForServer(audiences []string) bool {
	return len(t.Audiences.Intersect(audiences)) == len(audiences)
}
