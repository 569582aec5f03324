package crdvalidation

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/transport"
)

func requiredNames(s *apiextensions.CustomResourceDefinitionSpec, path *field.Path) (errs field.ErrorList) {
	for _, n := range []struct{ name, value string }{
		{"plural", s.Names.Plural}, {"singular", s.Names.Singular}, {"kind", s.Names.Kind}, {"listKind", s.Names.ListKind},
	} {
		if n.value == "" {
			errs = append(errs, field.Required(path.Child(n.name), ""))
		}
	}
	return errs
}

func names(n *apiextensions.CustomResourceDefinitionNames, path *field.Path) (errs field.ErrorList) {
	label := func(at *field.Path, value string) {
		if msgs := validation.IsDNS1035Label(value); len(msgs) > 0 {
			errs = append(errs, field.Invalid(at, value, strings.Join(msgs, ",")))
		}
	}
	mixed := func(at *field.Path, value string) {
		if msgs := validation.IsDNS1035Label(strings.ToLower(value)); value != "" && len(msgs) > 0 {
			errs = append(errs, field.Invalid(at, value, "may have mixed case, but should otherwise match: "+strings.Join(msgs, ",")))
		}
	}
	if n.Plural != "" {
		label(path.Child("plural"), n.Plural)
	}
	if n.Singular != "" {
		label(path.Child("singular"), n.Singular)
	}
	mixed(path.Child("kind"), n.Kind)
	mixed(path.Child("listKind"), n.ListKind)
	for i, short := range n.ShortNames {
		label(path.Child("shortNames").Index(i), short)
	}
	if n.Kind != "" && n.Kind == n.ListKind {
		errs = append(errs, field.Invalid(path.Child("listKind"), n.ListKind, "kind and listKind may not be the same"))
	}
	for i, category := range n.Categories {
		label(path.Child("categories").Index(i), category)
	}
	return errs
}

func column(c *apiextensions.CustomResourceColumnDefinition, path *field.Path) (errs field.ErrorList) {
	types := []string{"boolean", "date", "integer", "number", "string"}
	formats := []string{"byte", "date", "date-time", "double", "float", "int32", "int64", "password"}
	if c.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), ""))
	}
	mustBe := "must be one of " + strings.Join(types, ",")
	if c.Type == "" {
		errs = append(errs, field.Required(path.Child("type"), mustBe))
	} else if !slices.Contains(types, c.Type) {
		errs = append(errs, field.Invalid(path.Child("type"), c.Type, mustBe))
	}
	if c.Format != "" && !slices.Contains(formats, c.Format) {
		errs = append(errs, field.Invalid(path.Child("format"), c.Format, "must be one of "+strings.Join(formats, ",")))
	}
	if c.JSONPath == "" {
		return append(errs, field.Required(path.Child("JSONPath"), ""))
	}
	return append(errs, simplePath(c.JSONPath, path.Child("JSONPath"))...)
}

func simplePath(p string, path *field.Path) field.ErrorList {
	if !strings.HasPrefix(p, ".") {
		return field.ErrorList{field.Invalid(path, p, "must be a simple json path starting with .")}
	}
	return nil
}

func hasStatus(s *apiextensions.CustomResourceDefinitionSpec) bool {
	has := func(s *apiextensions.CustomResourceSubresources) bool { return s != nil && s.Status != nil }
	return has(s.Subresources) || slices.ContainsFunc(s.Versions, func(v apiextensions.CustomResourceDefinitionVersion) bool { return has(v.Subresources) })
}

func subresources(s *apiextensions.CustomResourceSubresources, path *field.Path) (errs field.ErrorList) {
	if s == nil || s.Scale == nil {
		return nil
	}
	below := func(p string, at *field.Path, shown any, where string, prefixes ...string) {
		if e := simplePath(p, at); len(e) > 0 {
			errs = append(errs, e...)
		} else if !slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(p, prefix) }) {
			errs = append(errs, field.Invalid(at, shown, "should be a json path under "+where))
		}
	}
	required := func(p, name, prefix string) {
		at := path.Child("scale." + name)
		if p == "" {
			errs = append(errs, field.Required(at, ""))
			return
		}
		below(p, at, p, strings.TrimSuffix(prefix, "."), prefix)
	}
	required(s.Scale.SpecReplicasPath, "specReplicasPath", ".spec.")
	required(s.Scale.StatusReplicasPath, "statusReplicasPath", ".status.")
	if p := s.Scale.LabelSelectorPath; p != nil && *p != "" {
		below(*p, path.Child("scale.labelSelectorPath"), p, "either .spec or .status", ".spec.", ".status.")
	}
	return errs
}

// isReviewVersion is true of the versions of ConversionReview that a server knows.
func isReviewVersion(v string) bool { return v == "v1" || v == "v1beta1" }

func conversion(c *apiextensions.CustomResourceConversion, o options, path *field.Path) field.ErrorList {
	if c == nil {
		return nil
	}
	errs := oneOf(path.Child("strategy"), string(c.Strategy), string(apiextensions.NoneConverter), string(apiextensions.WebhookConverter))
	client := path.Child("webhookClientConfig")
	if c.Strategy != apiextensions.WebhookConverter {
		const message = "should not be set when strategy is not set to Webhook"
		if c.WebhookClientConfig != nil {
			errs = append(errs, field.Forbidden(client, message))
		}
		if len(c.ConversionReviewVersions) > 0 {
			errs = append(errs, field.Forbidden(path.Child("conversionReviewVersions"), message))
		}
		return errs
	}
	if c.WebhookClientConfig == nil {
		errs = append(errs, field.Required(client, "required when strategy is set to Webhook"))
	} else {
		errs = append(errs, clientConfig(c.WebhookClientConfig, o, client)...)
	}
	return append(errs, reviewVersions(c.ConversionReviewVersions, o, path.Child("conversionReviewVersions"))...)
}

func clientConfig(c *apiextensions.WebhookClientConfig, o options, path *field.Path) (errs field.ErrorList) {
	switch {
	case (c.URL == nil) == (c.Service == nil):
		errs = append(errs, field.Required(path, "exactly one of url or service is required"))
	case c.URL != nil:
		errs = append(errs, webhookURL(*c.URL, path.Child("url"))...)
	default:
		errs = append(errs, webhookService(c.Service, path.Child("service"))...)
	}
	if len(c.CABundle) > 0 && o.caBundle {
		if err := CheckCABundle(c.CABundle); err != nil {
			errs = append(errs, field.Invalid(path.Child("caBundle"), c.CABundle, err.Error()))
		}
	}
	return errs
}

// CheckCABundle returns what is wrong with the CA certificates of a webhook, in PEM.
func CheckCABundle(pem []byte) error {
	_, err := transport.TLSConfigFor(&transport.Config{TLS: transport.TLSConfig{CAData: pem}})
	return err
}

// hasValidCABundle is true where there is none, too.
func hasValidCABundle(c *apiextensions.CustomResourceConversion) bool {
	return c == nil || c.WebhookClientConfig == nil || CheckCABundle(c.WebhookClientConfig.CABundle) == nil
}

func reviewVersions(versions []string, o options, path *field.Path) (errs field.ErrorList) {
	if len(versions) == 0 {
		return field.ErrorList{field.Required(path, "")}
	}
	for i, v := range versions {
		if slices.Contains(versions[:i], v) {
			errs = append(errs, field.Invalid(path.Index(i), v, "duplicate version"))
			continue
		}
		for _, msg := range validation.IsDNS1035Label(v) {
			errs = append(errs, field.Invalid(path.Index(i), v, msg))
		}
	}
	if o.recognizedReview && !slices.ContainsFunc(versions, isReviewVersion) {
		errs = append(errs, field.Invalid(path, versions, "must include at least one of v1, v1beta1"))
	}
	return errs
}

func webhookURL(raw string, path *field.Path) (errs field.ErrorList) {
	const form = "; desired format: https://host[/path]"
	u, err := url.Parse(raw)
	if err != nil {
		return field.ErrorList{field.Required(path, "url must be a valid URL: "+err.Error()+form)}
	}
	if u.Scheme != "https" {
		errs = append(errs, field.Invalid(path, u.Scheme, "'https' is the only allowed URL scheme"+form))
	}
	if u.Host == "" {
		errs = append(errs, field.Invalid(path, u.Host, "host must be specified"+form))
	}
	if u.User != nil {
		errs = append(errs, field.Invalid(path, u.User.String(), "user information is not permitted in the URL"))
	}
	if u.Fragment != "" {
		errs = append(errs, field.Invalid(path, u.Fragment, "fragments are not permitted in the URL"))
	}
	if u.RawQuery != "" {
		errs = append(errs, field.Invalid(path, u.RawQuery, "query parameters are not permitted in the URL"))
	}
	return errs
}

// webhookService reports a missing name as upstream does, which passes the two names
// the wrong way round: as a missing namespace.
func webhookService(s *apiextensions.ServiceReference, path *field.Path) (errs field.ErrorList) {
	if s.Namespace == "" {
		errs = append(errs, field.Required(path.Child("name"), ""))
	}
	if s.Name == "" {
		errs = append(errs, field.Required(path.Child("namespace"), ""))
	}
	if msgs := validation.IsValidPortNum(int(s.Port)); len(msgs) > 0 {
		errs = append(errs, field.Invalid(path.Child("port"), s.Port, "port is not valid: "+strings.Join(msgs, ", ")))
	}
	if s.Path == nil || *s.Path == "" || *s.Path == "/" {
		return errs
	}
	p, at := *s.Path, path.Child("path")
	if p == "//" {
		return append(errs, field.Invalid(at, p, "segment[0] may not be empty"))
	}
	if p[0] != '/' {
		errs = append(errs, field.Invalid(at, p, "must start with a '/'"))
	}
	for i, step := range strings.Split(strings.TrimSuffix(p[1:], "/"), "/") {
		if step == "" {
			errs = append(errs, field.Invalid(at, p, fmt.Sprintf("segment[%d] may not be empty", i)))
			continue
		}
		for _, msg := range validation.IsDNS1123Subdomain(step) {
			errs = append(errs, field.Invalid(at, p, fmt.Sprintf("segment[%d]: %v", i, msg)))
		}
	}
	return errs
}
