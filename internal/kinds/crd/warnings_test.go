package crd

import (
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// TestKnownFormats checks that the known formats of each type are those that upstream recognizes (VAL-025).
func TestKnownFormats(t *testing.T) {
	formats := []string{"bsonobjectid", "bsonObjectId", "uri", "email", "hostname", "ipv4", "ipv6", "cidr", "mac",
		"uuid", "uuid3", "uuid4", "uuid5", "isbn", "isbn10", "isbn13", "creditcard", "ssn",
		"hexcolor", "rgbcolor", "byte", "password", "date", "duration", "datetime", "date-time", "d-a-t-e",
		"k8s-short-name", "k8s-long-name", "k8sshortname", "int32", "int64", "float", "double", "int-32", "odd", "-"}
	for _, typ := range []string{"", "string", "integer", "number", "boolean", "object", "array"} {
		for _, format := range formats {
			s := &spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{typ}, Format: format}}
			want := len(validation.GetUnrecognizedFormats(s, environment.DefaultCompatibilityVersion())) == 0
			if got := !isUnknownFormat(typ, format); got != want {
				t.Errorf("format %q of type %q: got known %v, want %v", format, typ, got, want)
			}
		}
	}
}
