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

	"github.com/trellis-k8s/trellis/internal/engine"
)

// get reads one object.
func (q *request) get() error {
	if err := q.negotiate(); err != nil {
		return err
	}
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

// create makes a new object, or answers a question.
func (q *request) create() error {
	ctx, cancel := q.limited()
	defer cancel()
	if err := q.negotiate(); err != nil {
		return err
	}
	if _, err := bodyFormat(q.r, q.server.offers); err != nil {
		return err
	}
	o := &metav1.CreateOptions{}
	b, err := q.sent(o, func() error { return refused("CreateOptions", validation.ValidateCreateOptions(o)) })
	if err != nil {
		return err
	}
	caller := q.caller(o, o.FieldManager, o.FieldValidation, o.DryRun)
	if q.subresource != "" || q.v.Definition.PostsTo != nil {
		return q.act(ctx, b, caller)
	}
	obj, err := q.server.engine.Create(ctx, q.target(), b, caller)
	if err != nil {
		return err
	}
	return q.respond(http.StatusCreated, obj)
}

// act does what a POST to a subresource asks for.
func (q *request) act(ctx context.Context, b engine.Body, c engine.Caller) error {
	obj, said, err := q.server.engine.PostSubresource(ctx, q.target(), b, c)
	if err != nil {
		return err
	}
	if said {
		return q.respond(http.StatusCreated, obj)
	}
	return q.respondStatus(http.StatusCreated, &metav1.Status{TypeMeta: statusType, Status: metav1.StatusSuccess, Code: http.StatusCreated})
}

// update replaces an object or a part of it.
func (q *request) update() error {
	ctx, cancel := q.limited()
	defer cancel()
	if err := q.negotiate(); err != nil {
		return err
	}
	o := &metav1.UpdateOptions{}
	b, err := q.sent(o, func() error { return refused("UpdateOptions", validation.ValidateUpdateOptions(o)) })
	if err != nil {
		return err
	}
	obj, created, err := q.server.engine.Update(ctx, q.target(), b, q.caller(o, o.FieldManager, o.FieldValidation, o.DryRun))
	if err != nil {
		return err
	}
	return q.respond(written(created), obj)
}

// sent reads what a create or an update sends: the body, then the options, which check looks at, then
// what the body says. It is the order in which upstream finds fault.
func (q *request) sent(options runtime.Object, check func() error) (b engine.Body, err error) {
	data, err := q.content()
	if err != nil {
		return b, err
	}
	q.trace.sends(data)
	if err := decodeOptions(q.query(), options); err != nil {
		return b, err
	}
	if err := check(); err != nil {
		return b, err
	}
	f, err := bodyFormat(q.r, q.server.offers)
	if err != nil {
		return b, err
	}
	return q.decode(f, data)
}

func written(created bool) int {
	if created {
		return http.StatusCreated
	}
	return http.StatusOK
}

// patchTypes are the kinds of patch that a kind takes.
func (q *request) patchTypes() []string {
	all := []string{string(types.JSONPatchType), string(types.MergePatchType)}
	if q.v.Definition.Custom == nil || q.v.Type != nil {
		all = append(all, string(types.StrategicMergePatchType))
	}
	all = append(all, string(types.ApplyYAMLPatchType))
	if q.server.config.EnableCBOR {
		all = append(all, string(types.ApplyCBORPatchType))
	}
	return all
}

// patch changes a part of an object.
func (q *request) patch() error {
	ctx, cancel := q.limited()
	defer cancel()
	contentType := q.r.Header.Get("Content-Type")
	if i := strings.IndexByte(contentType, ';'); i > 0 {
		contentType = contentType[:i]
	}
	q.apply = contentType == string(types.ApplyYAMLPatchType)
	if all := q.patchTypes(); !slices.Contains(all, contentType) {
		return negotiation.NewUnsupportedMediaTypeError(all)
	}
	if err := q.negotiate(); err != nil {
		return err
	}
	data, err := q.content()
	if err != nil {
		return err
	}
	if q.apply {
		q.trace.sends(data)
	}
	o, p := &metav1.PatchOptions{}, engine.Patch{Type: types.PatchType(contentType), Data: data}
	if err := decodeOptions(q.query(), o); err != nil {
		return err
	}
	if err := refused("PatchOptions", validation.ValidatePatchOptions(o, p.Type)); err != nil {
		return err
	}
	q.auditBody(func() ([]byte, error) { return patchJSON(p) })
	p.Force = o.Force != nil && *o.Force
	if p.Type == types.ApplyCBORPatchType {
		p.Type = types.ApplyYAMLPatchType // JSON is YAML
		if p.Data, err = cborToJSON(data); err != nil {
			return err
		}
	}
	obj, created, err := q.server.engine.Patch(ctx, q.target(), p, q.caller(o, o.FieldManager, o.FieldValidation, o.DryRun))
	if err != nil {
		return err
	}
	return q.respond(written(created), obj)
}

// patchJSON is a patch as it is audited.
func patchJSON(p engine.Patch) ([]byte, error) {
	switch p.Type {
	case types.ApplyYAMLPatchType:
		return utilyaml.ToJSON(p.Data)
	case types.ApplyCBORPatchType:
		return cborToJSON(p.Data)
	}
	return p.Data, nil
}

// delete removes an object or starts its deletion.
func (q *request) delete() error {
	ctx, cancel := q.limited()
	defer cancel()
	if err := q.negotiate(); err != nil {
		return err
	}
	o, err := q.deleteOptions()
	if err != nil {
		return err
	}
	obj, gone, err := q.server.engine.Delete(ctx, q.target(), *o, q.caller(o, "", "", o.DryRun))
	if err != nil {
		return err
	}
	if gone && !q.v.Definition.Behavior.ReturnsDeleted {
		return q.respondDeleted(obj)
	}
	code := http.StatusOK
	// clients still send it
	if !gone && o.OrphanDependents != nil && !*o.OrphanDependents {
		code = http.StatusAccepted
	}
	return q.respond(code, obj)
}

// respondDeleted is the answer where nothing is left to be shown.
func (q *request) respondDeleted(obj engine.Object) error {
	gr := q.v.GroupResource()
	return q.respondStatus(http.StatusOK, &metav1.Status{TypeMeta: statusType, Status: metav1.StatusSuccess, Details: &metav1.StatusDetails{
		Name: q.name, Group: gr.Group, Kind: gr.Resource, UID: obj.Meta().UID,
	}})
}

// respondStatus answers with a Status in place of an object.
func (q *request) respondStatus(code int, s *metav1.Status) error {
	q.auditStatus(s)
	body, err := encodeStatus(q.media, s)
	if err == nil {
		q.write(code, q.media.media, body)
	}
	return err
}

// clear deletes a collection and answers with what was in it.
func (q *request) clear() error {
	if err := q.negotiate(); err != nil {
		return err
	}
	lo, err := q.listOptions()
	if err != nil {
		return err
	}
	do, err := q.deleteOptions()
	if err != nil {
		return err
	}
	l, err := q.server.engine.DeleteCollection(q.r.Context(), q.target(), *do, lo.engine(), q.caller(do, "", "", do.DryRun))
	if err != nil {
		return err
	}
	return q.respondList(l)
}
