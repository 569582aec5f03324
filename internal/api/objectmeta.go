package api

import (
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/object"
)

// metaReader reads the metadata of a stored object as encoding/json does, at a fraction of the
// cost. odd is set by anything unexpected: then encoding/json
// has to be asked.
type metaReader struct {
	*object.Cursor
	odd bool
}

// readMeta reads the metadata of an object's JSON into m, whose strings lie in js. found is
// false where there is none, ok where it is not as it should be.
func readMeta(js []byte, m *metav1.ObjectMeta) (found, ok bool) {
	r := metaReader{Cursor: object.NewCursor(js)}
	r.Members(func(key string) {
		if key != "metadata" || found || r.Kind() != '{' {
			return
		}
		found = true
		r.Members(func(key string) { r.field(key, m) })
	})
	return found, !r.odd
}

// is tells whether a value is of a kind; null is nothing to read.
func (r *metaReader) is(kind byte) bool {
	k := r.Kind()
	r.odd = r.odd || k != kind && k != 'n'
	return k == kind
}

func (r *metaReader) text(to *string) {
	if r.is('"') {
		*to = r.Text()
	}
}

func (r *metaReader) number(to *int64) {
	if r.Kind() == 'n' {
		return
	}
	n, err := strconv.ParseInt(r.Raw(), 10, 64)
	r.odd = r.odd || err != nil
	*to = n
}

func (r *metaReader) flag(to **bool) {
	if k := r.Kind(); k == 't' || k == 'f' {
		b := k == 't'
		*to = &b
		return
	}
	r.odd = r.odd || r.Kind() != 'n'
}

func (r *metaReader) time(to *metav1.Time) (set bool) {
	var text string
	if r.text(&text); text == "" {
		r.odd = r.odd || r.Kind() != 'n'
		return false
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		r.odd = true
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
	if !r.is('{') {
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

// list reads a list, each item with read.
func list[T any](r *metaReader, to *[]T, read func(*T)) {
	if !r.is('[') {
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
		list(r, &m.ManagedFields, r.managed)
	default:
		r.odd = true
	}
}

func (r *metaReader) owner(o *metav1.OwnerReference) {
	if !r.is('{') {
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
			r.flag(&o.Controller)
		case "blockOwnerDeletion":
			r.flag(&o.BlockOwnerDeletion)
		default:
			r.odd = true
		}
	})
}

func (r *metaReader) managed(e *metav1.ManagedFieldsEntry) {
	if !r.is('{') {
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
			if r.is('{') {
				e.FieldsV1 = &metav1.FieldsV1{Raw: []byte(r.Raw())}
			}
		default:
			r.odd = true
		}
	})
}
