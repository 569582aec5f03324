package crd

import (
	"context"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/crd/conversion"
	"github.com/trellis-k8s/trellis/internal/crd/crdvalidation"
	"github.com/trellis-k8s/trellis/internal/crd/definition"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// declaredConversion validates the conversion that a CRD declares in an annotation, if the annotation or the spec has
// changed. The rest of the CRD must be valid. The cost limits of the expressions equal those of the validation rules
// of one schema.
func declaredConversion(obj, old object.Tree) field.ErrorList {
	text, _ := object.Annotation(obj, resource.ConversionAnnotation)
	oldText, _ := object.Annotation(old, resource.ConversionAnnotation)
	if text == "" || text == oldText && object.Equal(obj["spec"], old["spec"]) {
		return nil
	}
	d := definition.FromCRD(&storage.Record{Value: object.Pack(obj, 0).JSON()})
	if d == nil {
		return nil
	}
	costs, errs := conversion.CheckDeclared(context.Background(), d)
	total := uint64(0)
	for _, c := range costs {
		total = max(total, total+c.Cost)
		if c.Cost > crdvalidation.MaxRuleCost {
			message := crdvalidation.CostMessage("estimated expression cost", c.Cost, crdvalidation.MaxRuleCost)
			errs = append(errs, field.Forbidden(c.Path, message))
		}
	}
	if total > crdvalidation.MaxCRDCost {
		errs = append(errs, field.Forbidden(field.NewPath("metadata", "annotations").Key(resource.ConversionAnnotation),
			crdvalidation.CostMessage("estimated expression cost total for the conversion", total,
				crdvalidation.MaxCRDCost)))
	}
	return errs
}
