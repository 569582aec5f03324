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

// safeCall calls a webhook. A panic is its failure: nobody else would recover in a goroutine of its own.
func (s *reviewRequest) safeCall(ctx context.Context, h *hook, to *generic.WebhookInvocation, a *upstream.VersionedAttributes) (err error) {
	defer func() {
		if p := recover(); p != nil {
			slog.Error("the call of a webhook panicked", "webhook", h.GetName(), "panic", p, "stack", string(debug.Stack()))
			err = callError(h, "%w", fmt.Errorf("ValidatingAdmissionWebhook/%s has panicked: %v", h.GetName(), p))
		}
	}()
	_, err = s.call(ctx, h, to, a)
	return err
}

// validator asks the validating webhooks, all at the same time.
type validator struct{ plugin }

// Admit implements admission.Plugin.
func (p *validator) Admit(context.Context, *admission.Request) error { return nil }

// Validate implements admission.Plugin. Of several that refuse, the first is told.
func (p *validator) Validate(ctx context.Context, r *admission.Request) error {
	s, err := p.newReviewRequest(ctx, r)
	if err != nil {
		return err
	}
	type question struct {
		*hook
		to         *generic.WebhookInvocation
		attributes *upstream.VersionedAttributes
	}
	var all []question
	err = p.each(ctx, s, func(h *hook, to *generic.WebhookInvocation) error {
		attributes, err := s.VersionedAttribute(to.Kind)
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		all = append(all, question{h, to, attributes})
		return nil
	})
	if err != nil || len(all) == 0 {
		return err
	}
	if ctx.Err() != nil {
		return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
	}
	if slices.ContainsFunc(all, func(q question) bool { return s.cached(q.hook, q.attributes) == nil }) {
		r.Waits()
	}
	refusals := make(chan error, len(all))
	answers := make([]struct {
		took time.Duration
		err  error
	}, len(all))
	var asked sync.WaitGroup
	for i, q := range all {
		asked.Go(func() {
			began := time.Now()
			err := s.safeCall(ctx, q.hook, q.to, q.attributes)
			if err != nil {
				err = s.applyFailurePolicy(q.hook, err, fmt.Sprintf("%sround_0_index_%d", validating.ValidatingAuditAnnotationPrefix, i))
			}
			answers[i].took, answers[i].err = time.Since(began), err
			if err != nil {
				refusals <- err
			}
		})
	}
	asked.Wait()
	close(refusals)
	for i, a := range answers {
		r.Told(all[i].GetName(), a.took, a.err, nil, nil)
	}
	return <-refusals
}
