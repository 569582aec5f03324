package encoding

import (
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/object"
)

// metaReader decodes the metadata of a stored object. The result is the same as with encoding/json, but decoding is
// much faster. metaReader sets unexpected if the input has an unexpected form. The caller must then use
// encoding/json.
type metaReader struct {
	*object.Cursor
	unexpected bool
}

// readMeta decodes the metadata in an object's JSON into m. The strings of m share the memory of js. found reports
// whether the object has metadata. ok is false if the metadata has an unexpected form.
func readMeta(js []byte, m *metav1.ObjectMeta) (found, ok bool) {
	r := metaReader{Cursor: object.NewCursor(js)}
	r.Members(func(key string) {
		if key != "metadata" || found || r.Kind() != '{' {
			return
		}
		found = true
		r.Members(func(key string) { r.field(key, m) })
	})
	return found, !r.unexpected
}

// expect reports whether the next value is of the given kind. Any other kind except null is unexpected.
func (r *metaReader) expect(kind byte) bool {
	k := r.Kind()
	r.unexpected = r.unexpected || k != kind && k != 'n'
	return k == kind
}

func (r *metaReader) text(to *string) {
	if r.expect('"') {
		*to = r.Text()
	}
}

func (r *metaReader) number(to *int64) {
	if r.Kind() == 'n' {
		return
	}
	n, err := strconv.ParseInt(r.Raw(), 10, 64)
	r.unexpected = r.unexpected || err != nil
	*to = n
}

func (r *metaReader) boolean(to **bool) {
	if k := r.Kind(); k == 't' || k == 'f' {
		b := k == 't'
		*to = &b
		return
	}
	r.unexpected = r.unexpected || r.Kind() != 'n'
}

func (r *metaReader) time(to *metav1.Time) (set bool) {
	var s string
	if r.text(&s); s == "" {
		r.unexpected = r.unexpected || r.Kind() != 'n'
		return false
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		r.unexpected = true
		return false
	}
	to.Time = t.Local()
	return true
}

func (r *metaReader) optionalTime(to **metav1.Time) {
	var t metav1.Time
	if r.time(&t) {
		*to = &t
	}
}

func (r *metaReader) texts(to *map[string]string) {
	if !r.expect('{') {
		return
	}
	out := map[string]string{}
	r.Members(func(key string) {
		var v string
		r.text(&v)
		out[key] = v
	})
	*to = out
}

// list decodes a list and calls read for each item.
func list[T any](r *metaReader, to *[]T, read func(*T)) {
	if !r.expect('[') {
		return
	}
	*to = []T{}
	r.Elements(func(i int) {
		*to = append(*to, *new(T))
		read(&(*to)[i])
	})
}

func (r *metaReader) field(key string, m *metav1.ObjectMeta) {
	switch key {
	case "name":
		r.text(&m.Name)
	case "generateName":
		r.text(&m.GenerateName)
	case "namespace":
		r.text(&m.Namespace)
	case "selfLink":
		r.text(&m.SelfLink)
	case "uid":
		r.text((*string)(&m.UID))
	case "resourceVersion":
		r.text(&m.ResourceVersion)
	case "generation":
		r.number(&m.Generation)
	case "creationTimestamp":
		r.time(&m.CreationTimestamp)
	case "deletionTimestamp":
		r.optionalTime(&m.DeletionTimestamp)
	case "deletionGracePeriodSeconds":
		if r.Kind() != 'n' {
			m.DeletionGracePeriodSeconds = new(int64)
			r.number(m.DeletionGracePeriodSeconds)
		}
	case "labels":
		r.texts(&m.Labels)
	case "annotations":
		r.texts(&m.Annotations)
	case "ownerReferences":
		list(r, &m.OwnerReferences, r.owner)
	case "finalizers":
		list(r, &m.Finalizers, r.text)
	case "managedFields":
		list(r, &m.ManagedFields, r.managedFields)
	default:
		r.unexpected = true
	}
}

func (r *metaReader) owner(o *metav1.OwnerReference) {
	if !r.expect('{') {
		return
	}
	r.Members(func(key string) {
		switch key {
		case "apiVersion":
			r.text(&o.APIVersion)
		case "kind":
			r.text(&o.Kind)
		case "name":
			r.text(&o.Name)
		case "uid":
			r.text((*string)(&o.UID))
		case "controller":
			r.boolean(&o.Controller)
		case "blockOwnerDeletion":
			r.boolean(&o.BlockOwnerDeletion)
		default:
			r.unexpected = true
		}
	})
}

func (r *metaReader) managedFields(e *metav1.ManagedFieldsEntry) {
	if !r.expect('{') {
		return
	}
	r.Members(func(key string) {
		switch key {
		case "manager":
			r.text(&e.Manager)
		case "operation":
			r.text((*string)(&e.Operation))
		case "apiVersion":
			r.text(&e.APIVersion)
		case "fieldsType":
			r.text(&e.FieldsType)
		case "subresource":
			r.text(&e.Subresource)
		case "time":
			r.optionalTime(&e.Time)
		case "fieldsV1":
			if r.expect('{') {
				e.FieldsV1 = &metav1.FieldsV1{Raw: []byte(r.Raw())}
			}
		default:
			r.unexpected = true
		}
	})
}
