package webhook

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	upstream "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/generic"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/validating"

	"github.com/trellis-k8s/trellis/internal/admission"
)

// safeCall calls a webhook and converts a panic to a callError. It runs in a separate goroutine, so no other function
// recovers from the panic.
func (s *reviewRequest) safeCall(
	ctx context.Context, h *hook, to *generic.WebhookInvocation, a *upstream.VersionedAttributes,
) (err error) {
	defer func() {
		if p := recover(); p != nil {
			slog.Error("panic during the call of a webhook", "webhook", h.GetName(), "panic", p, "stack",
				string(debug.Stack()))
			err = callError(h, "%w", fmt.Errorf("ValidatingAdmissionWebhook/%s has panicked: %v", h.GetName(), p))
		}
	}()
	_, err = s.call(ctx, h, to, a)
	return err
}

// validator is the plugin ValidatingAdmissionWebhook. It calls all webhooks concurrently.
type validator struct{ plugin }

// Admit implements admission.Plugin.
func (p *validator) Admit(context.Context, *admission.Request) error { return nil }

// Validate implements admission.Plugin. If several webhooks deny the request, it returns the error of the first one.
func (p *validator) Validate(ctx context.Context, r *admission.Request) error {
	s, err := p.newReviewRequest(ctx, r)
	if err != nil {
		return err
	}
	type call struct {
		*hook
		to         *generic.WebhookInvocation
		attributes *upstream.VersionedAttributes
	}
	var calls []call
	err = p.each(ctx, s, func(h *hook, to *generic.WebhookInvocation) error {
		attributes, err := s.VersionedAttribute(to.Kind)
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		calls = append(calls, call{h, to, attributes})
		return nil
	})
	if err != nil || len(calls) == 0 {
		return err
	}
	if ctx.Err() != nil {
		return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
	}
	if slices.ContainsFunc(calls, func(c call) bool { return s.cached(c.hook, c.attributes) == nil }) {
		r.WillBlock()
	}
	denials := make(chan error, len(calls))
	results := make([]struct {
		took time.Duration
		err  error
	}, len(calls))
	var running sync.WaitGroup
	for i, c := range calls {
		running.Go(func() {
			start := time.Now()
			err := s.safeCall(ctx, c.hook, c.to, c.attributes)
			if err != nil {
				annotation := fmt.Sprintf("%sround_0_index_%d", validating.ValidatingAuditAnnotationPrefix, i)
				err = s.applyFailurePolicy(c.hook, err, annotation)
			}
			results[i].took, results[i].err = time.Since(start), err
			if err != nil {
				denials <- err
			}
		})
	}
	running.Wait()
	close(denials)
	for i, result := range results {
		r.RecordStep(calls[i].GetName(), result.took, result.err, nil, nil)
	}
	return <-denials
}
