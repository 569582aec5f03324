package handlers

import (
	"context"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/trellis-k8s/trellis/internal/api/encoding"
	"github.com/trellis-k8s/trellis/internal/api/request"
	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
)

// get serves one object.
func (q call) get() error {
	revision := ""
	if q.R.URL.RawQuery != "" {
		o, err := q.getOptions()
		if err != nil {
			return err
		}
		revision = o.ResourceVersion
	}
	obj, err := q.Engine.Get(q.R.Context(), q.Target(), revision)
	if err != nil {
		return err
	}
	return q.Respond(http.StatusOK, obj)
}

// create creates an object, or evaluates a review.
func (q call) create() error {
	ctx, cancel := q.WriteContext()
	defer cancel()
	o := &metav1.CreateOptions{}
	b, err := q.readObject(o, func() error {
		return invalidOptions("CreateOptions", validation.ValidateCreateOptions(o))
	})
	if err != nil {
		return err
	}
	caller := q.caller(o, o.FieldManager, o.FieldValidation, o.DryRun)
	if q.Subresource != "" || q.Kind.Definition.PostsTo != nil {
		return q.postSubresource(ctx, b, caller)
	}
	obj, err := q.Engine.Create(ctx, q.Target(), b, caller)
	if err != nil {
		return err
	}
	return q.Respond(http.StatusCreated, obj)
}

// postSubresource serves a POST to a subresource.
func (q call) postSubresource(ctx context.Context, b verb.Body, c verb.Caller) error {
	obj, hasObject, err := q.Engine.PostSubresource(ctx, q.Target(), b, c)
	if err != nil {
		return err
	}
	if hasObject {
		return q.Respond(http.StatusCreated, obj)
	}
	return q.respondStatus(http.StatusCreated, &metav1.Status{
		TypeMeta: encoding.StatusType, Status: metav1.StatusSuccess, Code: http.StatusCreated,
	})
}

// update replaces an object or its subresource.
func (q call) update() error {
	ctx, cancel := q.WriteContext()
	defer cancel()
	o := &metav1.UpdateOptions{}
	b, err := q.readObject(o, func() error {
		return invalidOptions("UpdateOptions", validation.ValidateUpdateOptions(o))
	})
	if err != nil {
		return err
	}
	obj, created, err := q.Engine.Update(ctx, q.Target(), b,
		q.caller(o, o.FieldManager, o.FieldValidation, o.DryRun))
	if err != nil {
		return err
	}
	return q.Respond(writeCode(created), obj)
}

// readObject reads and decodes the object of a create or an update. It reads the body, decodes and checks the
// options, and then decodes the body. Upstream reports errors in this order. Only a create checks the format first.
func (q call) readObject(options runtime.Object, check func() error) (b verb.Body, err error) {
	offer, formatErr := q.OfBody(q.R.Header.Get("Content-Type"))
	if formatErr != nil && q.Verb == request.VerbCreate {
		return b, formatErr
	}
	data, err := q.readBudgetedBody()
	if err != nil {
		return b, err
	}
	q.recordSent(data)
	if err := request.DecodeOptions(q.Query(), options); err != nil {
		return b, err
	}
	if err := check(); err != nil {
		return b, err
	}
	if formatErr != nil {
		return b, formatErr
	}
	return q.decode(offer.Format, data)
}

func writeCode(created bool) int {
	if created {
		return http.StatusCreated
	}
	return http.StatusOK
}

// patch modifies an object with a patch.
func (q call) patch() error {
	ctx, cancel := q.WriteContext()
	defer cancel()
	data, err := q.readBudgetedBody()
	if err != nil {
		return err
	}
	if q.Apply {
		q.recordSent(data)
	}
	o, p := &metav1.PatchOptions{}, verb.Patch{Type: types.PatchType(q.ContentType()), Data: data}
	if err := request.DecodeOptions(q.Query(), o); err != nil {
		return err
	}
	if err := invalidOptions("PatchOptions", validation.ValidatePatchOptions(o, p.Type)); err != nil {
		return err
	}
	q.AuditRequestBody(func() ([]byte, error) { return patchJSON(p) })
	p.Force = o.Force != nil && *o.Force
	if p.Type == types.ApplyCBORPatchType {
		p.Type = types.ApplyYAMLPatchType // JSON is a subset of YAML
		if p.Data, err = cborToJSON(data); err != nil {
			return err
		}
	}
	obj, created, err := q.Engine.Patch(ctx, q.Target(), p,
		q.caller(o, o.FieldManager, o.FieldValidation, o.DryRun))
	if err != nil {
		return err
	}
	return q.Respond(writeCode(created), obj)
}

// patchJSON returns a patch as JSON for the audit event.
func patchJSON(p verb.Patch) ([]byte, error) {
	switch p.Type {
	case types.ApplyYAMLPatchType:
		return utilyaml.ToJSON(p.Data)
	case types.ApplyCBORPatchType:
		return cborToJSON(p.Data)
	}
	return p.Data, nil
}

// delete deletes an object or marks it for deletion.
func (q call) delete() error {
	ctx, cancel := q.WriteContext()
	defer cancel()
	o, err := q.deleteOptions()
	if err != nil {
		return err
	}
	obj, deleted, err := q.Engine.Delete(ctx, q.Target(), *o, q.caller(o, "", "", o.DryRun))
	if err != nil {
		return err
	}
	if deleted && !q.Kind.Definition.Behavior.ReturnsDeleted {
		return q.respondDeleted(obj)
	}
	code := http.StatusOK
	// The field orphanDependents is deprecated, but clients still send it.
	if !deleted && o.OrphanDependents != nil && !*o.OrphanDependents {
		code = http.StatusAccepted
	}
	return q.Respond(code, obj)
}

// respondDeleted writes the Status of a completed deletion.
func (q call) respondDeleted(obj record.Object) error {
	gr := q.Kind.GroupResource()
	return q.respondStatus(http.StatusOK, &metav1.Status{
		TypeMeta: encoding.StatusType, Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Name: q.Name, Group: gr.Group, Kind: gr.Resource, UID: obj.Meta().UID},
	})
}

// respondStatus writes a Status instead of an object.
func (q call) respondStatus(code int, s *metav1.Status) error {
	q.AuditStatus(s)
	body, err := q.Media.EncodeStatus(s)
	if err == nil {
		q.Write(code, q.Media.MediaType, body)
	}
	return err
}

// deleteCollection deletes a collection and writes the deleted objects.
func (q call) deleteCollection() error {
	lo, err := q.listOptions()
	if err != nil {
		return err
	}
	do, err := q.deleteOptions()
	if err != nil {
		return err
	}
	l, err := q.Engine.DeleteCollection(q.R.Context(), q.Target(), *do, lo.engine(),
		q.caller(do, "", "", do.DryRun))
	if err != nil {
		return err
	}
	return q.respondList(l)
}
