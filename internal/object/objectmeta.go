package object

import (
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fields maps the JSON name of each field of T to a function that returns the address of the field.
type fields[T any] map[string]func(*T) any

// The fields of metav1.ObjectMeta and of the structs in it. ReadObjectMeta and ObjectMeta decode the types to which
// these addresses point.
var (
	metaFields = fields[metav1.ObjectMeta]{
		"name":                       func(m *metav1.ObjectMeta) any { return &m.Name },
		"generateName":               func(m *metav1.ObjectMeta) any { return &m.GenerateName },
		"namespace":                  func(m *metav1.ObjectMeta) any { return &m.Namespace },
		"selfLink":                   func(m *metav1.ObjectMeta) any { return &m.SelfLink },
		"uid":                        func(m *metav1.ObjectMeta) any { return (*string)(&m.UID) },
		"resourceVersion":            func(m *metav1.ObjectMeta) any { return &m.ResourceVersion },
		"generation":                 func(m *metav1.ObjectMeta) any { return &m.Generation },
		"creationTimestamp":          func(m *metav1.ObjectMeta) any { return &m.CreationTimestamp },
		"deletionTimestamp":          func(m *metav1.ObjectMeta) any { return &m.DeletionTimestamp },
		"deletionGracePeriodSeconds": func(m *metav1.ObjectMeta) any { return &m.DeletionGracePeriodSeconds },
		"labels":                     func(m *metav1.ObjectMeta) any { return &m.Labels },
		"annotations":                func(m *metav1.ObjectMeta) any { return &m.Annotations },
		"ownerReferences":            func(m *metav1.ObjectMeta) any { return &m.OwnerReferences },
		"finalizers":                 func(m *metav1.ObjectMeta) any { return &m.Finalizers },
		"managedFields":              func(m *metav1.ObjectMeta) any { return &m.ManagedFields },
	}
	ownerFields = fields[metav1.OwnerReference]{
		"apiVersion":         func(o *metav1.OwnerReference) any { return &o.APIVersion },
		"kind":               func(o *metav1.OwnerReference) any { return &o.Kind },
		"name":               func(o *metav1.OwnerReference) any { return &o.Name },
		"uid":                func(o *metav1.OwnerReference) any { return (*string)(&o.UID) },
		"controller":         func(o *metav1.OwnerReference) any { return &o.Controller },
		"blockOwnerDeletion": func(o *metav1.OwnerReference) any { return &o.BlockOwnerDeletion },
	}
	managedFields = fields[metav1.ManagedFieldsEntry]{
		"manager":     func(e *metav1.ManagedFieldsEntry) any { return &e.Manager },
		"operation":   func(e *metav1.ManagedFieldsEntry) any { return (*string)(&e.Operation) },
		"apiVersion":  func(e *metav1.ManagedFieldsEntry) any { return &e.APIVersion },
		"fieldsType":  func(e *metav1.ManagedFieldsEntry) any { return &e.FieldsType },
		"subresource": func(e *metav1.ManagedFieldsEntry) any { return &e.Subresource },
		"time":        func(e *metav1.ManagedFieldsEntry) any { return &e.Time },
		"fieldsV1":    func(e *metav1.ManagedFieldsEntry) any { return &e.FieldsV1 },
	}
)

// ObjectMeta decodes the metadata of t, which may be nil. It leaves out values of a wrong type and the field sets in
// managedFields.
func ObjectMeta(t Tree) *metav1.ObjectMeta {
	m := &metav1.ObjectMeta{}
	setFields(m, Metadata(t), metaFields)
	return m
}

// OwnerReferences returns metadata.ownerReferences.
func OwnerReferences(t Tree) []metav1.OwnerReference {
	return structs(Metadata(t)["ownerReferences"], ownerFields)
}

// ManagedFields returns metadata.managedFields without the field sets.
func ManagedFields(t Tree) []metav1.ManagedFieldsEntry {
	return structs(Metadata(t)["managedFields"], managedFields)
}

func setFields[T any](to *T, from Tree, fields fields[T]) {
	for key, v := range from {
		if field := fields[key]; field != nil {
			setField(field(to), v)
		}
	}
}

func setField(to, v any) {
	switch to := to.(type) {
	case *string:
		*to, _ = v.(string)
	case *int64:
		*to, _ = v.(int64)
	case **int64:
		if n, ok := v.(int64); ok {
			*to = &n
		}
	case **bool:
		if b, ok := v.(bool); ok {
			*to = &b
		}
	case *metav1.Time:
		s, _ := v.(string)
		parseTime(s, to)
	case **metav1.Time:
		s, _ := v.(string)
		if t := new(metav1.Time); parseTime(s, t) {
			*to = t
		}
	case *map[string]string:
		*to = stringMap(v)
	case *[]string:
		*to = stringList(v)
	case *[]metav1.OwnerReference:
		*to = structs(v, ownerFields)
	case *[]metav1.ManagedFieldsEntry:
		*to = structs(v, managedFields)
	}
}

// structs decodes a list of objects. It returns nil if v is not a list of objects.
func structs[T any](v any, fields fields[T]) []T {
	list, _ := v.([]any)
	if len(list) == 0 {
		return nil
	}
	out := make([]T, len(list))
	for i := range list {
		item, ok := list[i].(Tree)
		if !ok {
			return nil
		}
		setFields(&out[i], item, fields)
	}
	return out
}

// parseTime stores the time s in RFC 3339 format in *to. It returns false if s is not a time.
func parseTime(s string, to *metav1.Time) bool {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return false
	}
	to.Time = t.Local()
	return true
}

// ReadObjectMeta decodes the metadata in the JSON of a stored object into m, faster than encoding/json and with the
// same result. The strings of m share the memory of js. found reports whether the object has metadata. ok is false if
// the metadata has an unexpected form. The caller must then use encoding/json.
func ReadObjectMeta(js []byte, m *metav1.ObjectMeta) (found, ok bool) {
	r := metaReader{Cursor: NewCursor(js)}
	r.Members(func(key string) {
		if key == keyMetadata && !found && r.Kind() == '{' {
			found = true
			readFields(&r, m, metaFields)
		}
	})
	return found, !r.unexpected
}

// metaReader sets unexpected if the JSON has an unexpected form.
type metaReader struct {
	*Cursor
	unexpected bool
}

// expect reports whether the next value is of the given kind. Any other kind except null is unexpected.
func (r *metaReader) expect(kind byte) bool {
	k := r.Kind()
	r.unexpected = r.unexpected || k != kind && k != 'n'
	return k == kind
}

func readFields[T any](r *metaReader, to *T, fields fields[T]) {
	if !r.expect('{') {
		return
	}
	r.Members(func(key string) {
		if field := fields[key]; field != nil {
			r.read(field(to))
		} else {
			r.unexpected = true
		}
	})
}

// readList decodes a list and calls read for each item.
func readList[T any](r *metaReader, to *[]T, read func(*T)) {
	if !r.expect('[') {
		return
	}
	*to = []T{}
	r.Elements(func(i int) {
		*to = append(*to, *new(T))
		read(&(*to)[i])
	})
}

func (r *metaReader) read(to any) {
	if r.Kind() == 'n' {
		return
	}
	switch to := to.(type) {
	case *string:
		if r.expect('"') {
			*to = r.Text()
		}
	case *int64:
		n, err := strconv.ParseInt(r.Raw(), 10, 64)
		r.unexpected = r.unexpected || err != nil
		*to = n
	case **int64:
		*to = new(int64)
		r.read(*to)
	case **bool:
		text := r.Raw()
		b := text == "true"
		r.unexpected = r.unexpected || !b && text != "false"
		*to = &b
	case *metav1.Time:
		if r.expect('"') {
			r.unexpected = !parseTime(r.Text(), to) || r.unexpected
		}
	case **metav1.Time:
		*to = new(metav1.Time)
		r.read(*to)
	case *map[string]string:
		if r.expect('{') {
			m := map[string]string{}
			r.Members(func(key string) {
				var v string
				r.read(&v)
				m[key] = v
			})
			*to = m
		}
	case *[]string:
		readList(r, to, func(s *string) { r.read(s) })
	case *[]metav1.OwnerReference:
		readList(r, to, func(o *metav1.OwnerReference) { readFields(r, o, ownerFields) })
	case *[]metav1.ManagedFieldsEntry:
		readList(r, to, func(e *metav1.ManagedFieldsEntry) { readFields(r, e, managedFields) })
	case **metav1.FieldsV1:
		if r.expect('{') {
			*to = &metav1.FieldsV1{Raw: []byte(r.Raw())}
		}
	}
}
