package builtin

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// ConfigMap and Secret: two bags of bytes under keys.

const immutableMessage = "field is immutable when `immutable` is set"

func configMaps() resource.Behavior {
	return resource.Behavior{
		Validate: validateConfigMap,
		ValidateUpdate: func(obj, old object.Tree, _ string) field.ErrorList {
			return validateImmutable(obj, old, "data", "binaryData")
		},
	}
}

func validateConfigMap(obj object.Tree) field.ErrorList {
	data, binary := tree(obj, "data"), tree(obj, "binaryData")
	errs := append(validateFinalizers(obj), validateKeys(data, field.NewPath("data"))...)
	for _, key := range sortedKeys(data) {
		if _, twice := binary[key]; twice {
			errs = append(errs, field.Invalid(field.NewPath("data").Key(key), key, "duplicate of key present in binaryData"))
		}
	}
	errs = append(errs, validateKeys(binary, field.NewPath("binaryData"))...)
	size := sizeOf(binary)
	for _, v := range data {
		s, _ := v.(string)
		size += len(s)
	}
	if size > corev1.MaxSecretSize {
		// upstream names the whole object by an empty path
		errs = append(errs, field.TooLong(field.NewPath(""), nil, corev1.MaxSecretSize))
	}
	return errs
}

func validateKeys(bag object.Tree, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, key := range sortedKeys(bag) {
		for _, msg := range validation.IsConfigMapKey(key) {
			errs = append(errs, field.Invalid(path.Key(key), key, msg))
		}
	}
	return errs
}

// sizeOf adds up the decoded size of base64 values.
func sizeOf(bag object.Tree) int {
	size := 0
	for _, v := range bag {
		size += decodedLen(v)
	}
	return size
}

// decodedLen is the size of what a padded base64 value stands for.
func decodedLen(v any) int {
	s, _ := v.(string)
	size := base64.StdEncoding.DecodedLen(len(s))
	for n := len(s); n > 0 && s[n-1] == '='; n-- {
		size--
	}
	return size
}

// validateImmutable refuses changes of names, and of immutable itself, once that is set.
func validateImmutable(obj, old object.Tree, names ...string) field.ErrorList {
	if !isTrue(old, "immutable") {
		return nil
	}
	var errs field.ErrorList
	if !isTrue(obj, "immutable") {
		errs = append(errs, field.Forbidden(field.NewPath("immutable"), immutableMessage))
	}
	for _, name := range names {
		if !object.Equal(orNil(tree(obj, name)), orNil(tree(old, name))) {
			errs = append(errs, field.Forbidden(field.NewPath(name), immutableMessage))
		}
	}
	return errs
}

// orNil makes an empty map equal to none.
func orNil(t object.Tree) any {
	if len(t) == 0 {
		return nil
	}
	return t
}

func secrets() resource.Behavior {
	return resource.Behavior{
		Default:  defaultSecret,
		Validate: validateSecret,
		ValidateUpdate: func(obj, old object.Tree, _ string) field.ErrorList {
			var errs field.ErrorList
			if text(obj, "type") != text(old, "type") {
				errs = append(errs, field.Invalid(field.NewPath("type"), text(obj, "type"), apivalidation.FieldImmutableErrorMsg))
			}
			return append(errs, validateImmutable(obj, old, "data")...)
		},
		Warnings: secretWarnings,
	}
}

// defaultSecret gives a type, and folds stringData, which is never stored, into
// data.
func defaultSecret(obj object.Tree) {
	if text(obj, "type") == "" {
		obj["type"] = string(corev1.SecretTypeOpaque)
	}
	if plain := tree(obj, "stringData"); len(plain) > 0 {
		data := child(obj, "data")
		for key, v := range plain {
			s, _ := v.(string)
			data[key] = base64.StdEncoding.EncodeToString([]byte(s))
		}
	}
	delete(obj, "stringData")
}

func validateSecret(obj object.Tree) field.ErrorList {
	data, path := tree(obj, "data"), field.NewPath("data")
	errs := append(validateFinalizers(obj), validateKeys(data, path)...)
	if sizeOf(data) > corev1.MaxSecretSize {
		errs = append(errs, field.TooLong(path, nil, corev1.MaxSecretSize))
	}
	switch corev1.SecretType(text(obj, "type")) {
	case corev1.SecretTypeServiceAccountToken:
		// what else belongs to it may be filled in later by a controller
		if text(obj, "metadata", "annotations", corev1.ServiceAccountNameKey) == "" {
			errs = append(errs, field.Required(field.NewPath("metadata", "annotations").Key(corev1.ServiceAccountNameKey), ""))
		}
	case corev1.SecretTypeDockercfg:
		errs = append(errs, validateJSONKey(data, corev1.DockerConfigKey)...)
	case corev1.SecretTypeDockerConfigJson:
		errs = append(errs, validateJSONKey(data, corev1.DockerConfigJsonKey)...)
	case corev1.SecretTypeBasicAuth:
		// either may be missing, and both may be empty
		if missing := missingKeys(data, corev1.BasicAuthUsernameKey, corev1.BasicAuthPasswordKey); len(missing) == 2 {
			errs = append(errs, missing...)
		}
	case corev1.SecretTypeSSHAuth:
		if decodedLen(data[corev1.SSHAuthPrivateKey]) == 0 {
			errs = append(errs, field.Required(path.Key(corev1.SSHAuthPrivateKey), ""))
		}
	case corev1.SecretTypeTLS:
		errs = append(errs, missingKeys(data, corev1.TLSCertKey, corev1.TLSPrivateKeyKey)...)
	}
	return errs
}

func missingKeys(data object.Tree, keys ...string) field.ErrorList {
	var errs field.ErrorList
	for _, key := range keys {
		if _, ok := data[key]; !ok {
			errs = append(errs, field.Required(field.NewPath("data").Key(key), ""))
		}
	}
	return errs
}

func validateJSONKey(data object.Tree, key string) field.ErrorList {
	if errs := missingKeys(data, key); errs != nil {
		return errs
	}
	if err := json.Unmarshal(decoded(data, key), &map[string]any{}); err != nil {
		return field.ErrorList{field.Invalid(field.NewPath("data").Key(key), "<secret contents redacted>", err.Error())}
	}
	return nil
}

// decoded returns the bytes under key; its base64 was checked when the Go type was read.
func decoded(data object.Tree, key string) []byte {
	b, err := base64.StdEncoding.DecodeString(text(data, key))
	if err != nil {
		return nil
	}
	return b
}

// secretWarnings tells of a TLS key that is not the certificate's.
func secretWarnings(obj, _ object.Tree) []string {
	if text(obj, "type") != string(corev1.SecretTypeTLS) {
		return nil
	}
	data := tree(obj, "data")
	if _, err := tls.X509KeyPair(decoded(data, corev1.TLSCertKey), decoded(data, corev1.TLSPrivateKeyKey)); err != nil {
		return []string{err.Error()}
	}
	return nil
}

func sortedKeys(t object.Tree) []string { return slices.Sorted(maps.Keys(t)) }
