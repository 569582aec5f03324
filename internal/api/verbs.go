package api

import (
	"context"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"

	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
)

// get serves one object.
func (q *request) get() error {
	revision := ""
	if q.r.URL.RawQuery != "" {
		o, err := q.getOptions()
		if err != nil {
			return err
		}
		revision = o.ResourceVersion
	}
	obj, err := q.server.engine.Get(q.r.Context(), q.target(), revision)
	if err != nil {
		return err
	}
	return q.respond(http.StatusOK, obj)
}

// create creates an object, or evaluates a review.
func (q *request) create() error {
	ctx, cancel := q.writeContext()
	defer cancel()
	o := &metav1.CreateOptions{}
	b, err := q.readObject(o, func() error {
		return invalidOptions("CreateOptions", validation.ValidateCreateOptions(o))
	})
	if err != nil {
		return err
	}
	caller := q.caller(o, o.FieldManager, o.FieldValidation, o.DryRun)
	if q.subresource != "" || q.v.Definition.PostsTo != nil {
		return q.postSubresource(ctx, b, caller)
	}
	obj, err := q.server.engine.Create(ctx, q.target(), b, caller)
	if err != nil {
		return err
	}
	return q.respond(http.StatusCreated, obj)
}

// postSubresource serves a POST to a subresource.
func (q *request) postSubresource(ctx context.Context, b verb.Body, c verb.Caller) error {
	obj, hasObject, err := q.server.engine.PostSubresource(ctx, q.target(), b, c)
	if err != nil {
		return err
	}
	if hasObject {
		return q.respond(http.StatusCreated, obj)
	}
	return q.respondStatus(http.StatusCreated, &metav1.Status{
		TypeMeta: statusType, Status: metav1.StatusSuccess, Code: http.StatusCreated,
	})
}

// update replaces an object or its subresource.
func (q *request) update() error {
	ctx, cancel := q.writeContext()
	defer cancel()
	o := &metav1.UpdateOptions{}
	b, err := q.readObject(o, func() error {
		return invalidOptions("UpdateOptions", validation.ValidateUpdateOptions(o))
	})
	if err != nil {
		return err
	}
	obj, created, err := q.server.engine.Update(ctx, q.target(), b,
		q.caller(o, o.FieldManager, o.FieldValidation, o.DryRun))
	if err != nil {
		return err
	}
	return q.respond(writeCode(created), obj)
}

// readObject reads and decodes the object of a create or an update. It reads the body, decodes and checks the
// options, and then decodes the body. Upstream reports errors in this order. Only a create checks the format first.
func (q *request) readObject(options runtime.Object, check func() error) (b verb.Body, err error) {
	f, formatErr := bodyFormat(q.r, q.server.offers)
	if formatErr != nil && q.verb == verbCreate {
		return b, formatErr
	}
	data, err := q.readBudgetedBody()
	if err != nil {
		return b, err
	}
	q.trace.recordSent(data)
	if err := decodeOptions(q.query(), options); err != nil {
		return b, err
	}
	if err := check(); err != nil {
		return b, err
	}
	if formatErr != nil {
		return b, formatErr
	}
	return q.decode(f, data)
}

func writeCode(created bool) int {
	if created {
		return http.StatusCreated
	}
	return http.StatusOK
}

// patchType returns the media type of a patch.
func (q *request) patchType() types.PatchType {
	contentType := q.r.Header.Get("Content-Type")
	if i := strings.IndexByte(contentType, ';'); i > 0 {
		contentType = contentType[:i]
	}
	return types.PatchType(contentType)
}

// checkPatchType returns an error if the resource does not support the type of the patch.
func (q *request) checkPatchType() error {
	all := []string{string(types.JSONPatchType), string(types.MergePatchType)}
	if q.v.Type != nil {
		all = append(all, string(types.StrategicMergePatchType))
	}
	all = append(all, string(types.ApplyYAMLPatchType))
	if q.server.config.EnableCBOR {
		all = append(all, string(types.ApplyCBORPatchType))
	}
	sent := q.patchType()
	q.apply = sent == types.ApplyYAMLPatchType
	if !slices.Contains(all, string(sent)) {
		return negotiation.NewUnsupportedMediaTypeError(all)
	}
	return nil
}

// patch modifies an object with a patch.
func (q *request) patch() error {
	ctx, cancel := q.writeContext()
	defer cancel()
	data, err := q.readBudgetedBody()
	if err != nil {
		return err
	}
	if q.apply {
		q.trace.recordSent(data)
	}
	o, p := &metav1.PatchOptions{}, verb.Patch{Type: q.patchType(), Data: data}
	if err := decodeOptions(q.query(), o); err != nil {
		return err
	}
	if err := invalidOptions("PatchOptions", validation.ValidatePatchOptions(o, p.Type)); err != nil {
		return err
	}
	q.auditRequestBody(func() ([]byte, error) { return patchJSON(p) })
	p.Force = o.Force != nil && *o.Force
	if p.Type == types.ApplyCBORPatchType {
		p.Type = types.ApplyYAMLPatchType // JSON is a subset of YAML
		if p.Data, err = cborToJSON(data); err != nil {
			return err
		}
	}
	obj, created, err := q.server.engine.Patch(ctx, q.target(), p,
		q.caller(o, o.FieldManager, o.FieldValidation, o.DryRun))
	if err != nil {
		return err
	}
	return q.respond(writeCode(created), obj)
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
func (q *request) delete() error {
	ctx, cancel := q.writeContext()
	defer cancel()
	o, err := q.deleteOptions()
	if err != nil {
		return err
	}
	obj, deleted, err := q.server.engine.Delete(ctx, q.target(), *o, q.caller(o, "", "", o.DryRun))
	if err != nil {
		return err
	}
	if deleted && !q.v.Definition.Behavior.ReturnsDeleted {
		return q.respondDeleted(obj)
	}
	code := http.StatusOK
	// The field orphanDependents is deprecated, but clients still send it.
	if !deleted && o.OrphanDependents != nil && !*o.OrphanDependents {
		code = http.StatusAccepted
	}
	return q.respond(code, obj)
}

// respondDeleted writes the Status of a completed deletion.
func (q *request) respondDeleted(obj record.Object) error {
	gr := q.v.GroupResource()
	return q.respondStatus(http.StatusOK, &metav1.Status{
		TypeMeta: statusType, Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Name: q.name, Group: gr.Group, Kind: gr.Resource, UID: obj.Meta().UID},
	})
}

// respondStatus writes a Status instead of an object.
func (q *request) respondStatus(code int, s *metav1.Status) error {
	q.auditStatus(s)
	body, err := encodeStatus(q.media, s)
	if err == nil {
		q.write(code, q.media.media, body)
	}
	return err
}

// deleteCollection deletes a collection and writes the deleted objects.
func (q *request) deleteCollection() error {
	lo, err := q.listOptions()
	if err != nil {
		return err
	}
	do, err := q.deleteOptions()
	if err != nil {
		return err
	}
	l, err := q.server.engine.DeleteCollection(q.r.Context(), q.target(), *do, lo.engine(),
		q.caller(do, "", "", do.DryRun))
	if err != nil {
		return err
	}
	return q.respondList(l)
}
