package builtin

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Questions that a caller asks about itself.

type answer = func(context.Context, user.Info, object.Tree) (object.Tree, error)

// whoAmI answers a SelfSubjectReview.
func whoAmI(c Config) answer {
	return func(_ context.Context, u user.Info, obj object.Tree) (object.Tree, error) {
		if u == nil {
			return nil, apierrors.NewBadRequest("no user present on request")
		}
		extra := map[string]authenticationv1.ExtraValue{}
		for k, v := range u.GetExtra() {
			extra[k] = v
		}
		return resource.ToTree(&authenticationv1.SelfSubjectReview{
			TypeMeta:   typeMeta(authenticationv1.SchemeGroupVersion.WithKind("SelfSubjectReview")),
			ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(c.Now())},
			Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{
				Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: extra,
			}},
		})
	}
}

// mayI answers a SelfSubjectAccessReview.
func mayI(c Config) answer {
	kind := authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview")
	return func(ctx context.Context, u user.Info, obj object.Tree) (object.Tree, error) {
		var review authorizationv1.SelfSubjectAccessReview
		if err := ask(obj, &review, kind, u); err != nil {
			return nil, err
		}
		path, spec := field.NewPath("spec"), &review.Spec
		errs := validateBare(review.ObjectMeta)
		switch {
		case spec.ResourceAttributes != nil && spec.NonResourceAttributes != nil:
			errs = append(errs, field.Invalid(path.Child("nonResourceAttributes"), spec.NonResourceAttributes, "cannot be specified in combination with resourceAttributes"))
		case spec.ResourceAttributes == nil && spec.NonResourceAttributes == nil:
			errs = append(errs, field.Invalid(path.Child("resourceAttributes"), spec.NonResourceAttributes, "exactly one of nonResourceAttributes or resourceAttributes must be specified"))
		}
		if len(errs) > 0 {
			return nil, apierrors.NewInvalid(kind.GroupKind(), "", errs)
		}
		review.Status = authorizationv1.SubjectAccessReviewStatus{}
		if c.Allowed != nil {
			review.Status.Allowed, review.Status.Reason = c.Allowed(ctx, u, spec)
		}
		return resource.ToTree(&review)
	}
}

// whatMayI answers a SelfSubjectRulesReview.
func whatMayI(c Config) answer {
	kind := authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectRulesReview")
	return func(ctx context.Context, u user.Info, obj object.Tree) (object.Tree, error) {
		var review authorizationv1.SelfSubjectRulesReview
		if err := ask(obj, &review, kind, u); err != nil {
			return nil, err
		}
		if review.Spec.Namespace == "" {
			return nil, apierrors.NewBadRequest("no namespace on request")
		}
		answer := authorizationv1.SelfSubjectRulesReview{TypeMeta: review.TypeMeta}
		answer.Status = authorizationv1.SubjectRulesReviewStatus{
			ResourceRules: []authorizationv1.ResourceRule{}, NonResourceRules: []authorizationv1.NonResourceRule{}, Incomplete: true,
		}
		if c.Rules != nil {
			answer.Status = c.Rules(ctx, u, review.Spec.Namespace)
		}
		return resource.ToTree(&answer)
	}
}

// ask reads the question into its Go type.
func ask(obj object.Tree, review runtime.Object, kind schema.GroupVersionKind, u user.Info) error {
	if u == nil {
		return apierrors.NewBadRequest("no user present on request")
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj, review); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	review.GetObjectKind().SetGroupVersionKind(kind)
	return nil
}

// validateBare refuses metadata on what is not an object.
func validateBare(meta metav1.ObjectMeta) field.ErrorList {
	bare := meta
	bare.ManagedFields = nil
	if bare.Size() == new(metav1.ObjectMeta).Size() {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata"), meta, "must be empty")}
}

func typeMeta(kind schema.GroupVersionKind) metav1.TypeMeta {
	apiVersion, name := kind.ToAPIVersionAndKind()
	return metav1.TypeMeta{APIVersion: apiVersion, Kind: name}
}
