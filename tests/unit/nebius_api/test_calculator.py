"""The emulated calculator answers in the shapes of the real one, from a price table of its own."""

from decimal import Decimal

import nebius.api.nebius.billing.v1 as billing
import nebius.api.nebius.compute.v1 as compute
import nebius.api.nebius.mk8s.v1 as mk8s
import pytest
from nebius.base.protos.dynamic import REGISTRY

from infra.local.nebius_api.hooks import _table
from stacks.catalog import PLATFORMS
from tests.unit.nebius_api.resources import filesystem, metadata, node_group, refused

UNITS = billing.FilterAggregationUnit.FilterAggregationUnitValue


def instance(platform, preset, **spec):
    resources = compute.ResourcesSpec(platform=platform, preset=preset)
    return compute.CreateInstanceRequest(
        metadata=metadata(), spec=compute.InstanceSpec(resources=resources, **spec)
    )


def request(sdk, *resources, **fields):
    specs = [billing.ResourceSpec(spec=REGISTRY.pack_any(one)) for one in resources]
    return billing.CalculatorServiceClient(sdk).estimate_batch(
        billing.EstimateBatchRequest(resource_specs=specs, **fields)
    )


def scaling(group):
    group.spec.autoscaling = mk8s.NodeGroupAutoscalingSpec(min_node_count=3, max_node_count=9)
    return group


def costs(breakdown):
    return [(sku.quantity, sku.cost) for sku in breakdown.sku_costs]


def test_an_nvlink_node_is_one_item_for_each_gpu(sdk):
    answer = request(sdk, instance("gpu-h100-sxm", "8gpu-128vcpu-1600gb")).wait()
    total = answer.resource_costs[0].general.total
    assert (total.cost, costs(total)) == ("30.8", [("8", "30.8")])


def test_an_l40s_node_is_billed_by_part(sdk):
    answer = request(sdk, instance("gpu-l40s-d", "2gpu-64vcpu-384gb")).wait()
    total = answer.resource_costs[0].general.total
    assert costs(total) == [("2", "2.7"), ("64", "0.64"), ("384", "1.2288")]
    assert total.cost == "4.5688"


def test_a_preemptible_node_costs_its_own_price(sdk):
    preemptible = compute.PreemptibleSpec(
        on_preemption=compute.PreemptibleSpec.PreemptionPolicy.STOP
    )
    wanted = instance("gpu-h200-sxm", "1gpu-16vcpu-200gb", preemptible=preemptible)
    answer = request(sdk, wanted).wait()
    assert answer.resource_costs[0].general.total.cost == "2.45"


def test_a_group_of_fixed_size_says_what_one_instance_costs(sdk):
    wanted = node_group("mk8scluster-e00x", nodes=3)
    answer = request(sdk, wanted, filesystem(size_gibibytes=1000)).wait()
    group = answer.resource_costs[0].fixed_instance
    disk = Decimal(128) * Decimal("0.000097222")
    assert Decimal(group.per_instance.cost) == Decimal("0.0992") + disk
    assert Decimal(group.total.cost) == 3 * Decimal(group.per_instance.cost)
    assert group.instance_count == 3
    total = Decimal(answer.total_costs[0].general.total.cost)
    assert total == Decimal(group.total.cost) + Decimal("0.109589")


def test_a_group_of_no_nodes_costs_nothing(sdk):
    answer = request(sdk, node_group("mk8scluster-e00x", nodes=0)).wait()
    group = answer.resource_costs[0].fixed_instance
    assert (group.instance_count, Decimal(group.total.cost)) == (0, 0)
    assert Decimal(group.per_instance.cost) > 0
    assert Decimal(answer.total_costs[0].general.total.cost) == 0


def test_a_filesystem_is_billed_by_the_hour_and_no_other_unit_is_answered(sdk):
    for units in ([], [UNITS.FILTER_AGGREGATION_UNIT_HOUR]):
        wanted = billing.FilterAggregationUnit(filter_aggregation_unit_values=units)
        answer = request(sdk, filesystem(size_gibibytes=1000), filter_aggregation_unit=wanted)
        (row,) = answer.wait().resource_costs
        assert row.aggregation_unit.unit == "hour"
        assert row.general.total.cost == "0.109589"
    month = billing.FilterAggregationUnit(
        filter_aggregation_unit_values=[UNITS.FILTER_AGGREGATION_UNIT_MONTH]
    )
    answer = request(sdk, filesystem(size_gibibytes=1000), filter_aggregation_unit=month)
    assert "prices by FILTER_AGGREGATION_UNIT_MONTH" in refused(answer).message


@pytest.mark.parametrize(
    ("resource", "message"),
    [
        (instance("gpu-h100-sxm", "3gpu"), "no price for gpu-h100-sxm 3gpu"),
        (filesystem(), "currency: 'EUR' is not supported"),
        (compute.CreateImageRequest(metadata=metadata()), "no price for nebius.compute.v1.Create"),
        (scaling(node_group("mk8scluster-e00x")), "autoscaling: no price for a group that scales"),
    ],
)
def test_what_has_no_price_is_refused_with_its_path(sdk, resource, message):
    currency = "EUR" if "currency" in message else "USD"
    assert message in refused(request(sdk, resource, currency=currency)).message


def test_an_l40s_has_no_preemptible_price(sdk):
    wanted = instance(
        "gpu-l40s-d", "2gpu-64vcpu-384gb", preemptible=compute.PreemptibleSpec(priority=1)
    )
    assert "no price for gpu-l40s-d, preemptible" in refused(request(sdk, wanted)).message


def test_an_empty_request_is_refused(sdk):
    assert "resource_specs: value is required" in refused(request(sdk)).message


def test_every_platform_of_the_catalogue_has_a_price():
    assert set(_table()["platforms"]) == set(PLATFORMS)
